"""Mutants that no test can tell from the original: (file, function, its lines before, and after) -> the reason."""

from __future__ import annotations

BENEATH, OPENED = "tools/files/safe_open.py", "tools/files/workspace.py"
CACHED = "_CACHED = {} # RESOLVE_CACHED, from Linux 5.12 on: EAGAIN where a part of the path is not in memory"
LOCAL = 'LOCAL = {{"ext3", "ext4", "xfs", "btrfs", {}}}'
AT_ONCE = "AT_ONCE_BYTES = {} * 1024 # a larger file is not read at once: to redact what it holds may take milliseconds"
FLAGS = '_COMMON = os.O_RDONLY | getattr(os, "O_CLOEXEC", {}) | getattr(os, "O_NOCTTY", {})'
FIFO = " # the open of a FIFO without a writer must not block"
RESOLVE = "_RESOLVE = {} # NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS, BENEATH"
NO_NAME = 'rename({}, "", "", EXCHANGE) # with empty names: if the call exists, it fails with ENOENT'
TRIES = "_TRIES = {} # EAGAIN: a rename elsewhere raced with the resolution"
OWNER = "return waiting_flow if waiting_flow is not None else"
PREFIXES = (
    'prefixes = [fold_path(re.split(r"[*?\\[{{]", text.removeprefix("./"), maxsplit={})[0]) for text in rule.paths]'
)
ELSEWHERE = "stands for systems that are not this one, where the flag is not there; nothing here comes to it"
NOT_AGAIN = "the kernel says so only where a path holds `..` or a file system is interrupted, and no plain path does"

EQUIVALENT: dict[tuple[str, str, str, str], str] = {
    ("core/input_checks.py", "_find_balanced_object", "depth, start = 0, 0", "depth, start = 0, 1"): (
        "the first token is an opening bracket at depth 0, which sets start before anybody reads it"
    ),
    (
        "core/input_checks.py",
        "_find_balanced_object",
        "and len(found) < MAX_OBJECTS",
        "and (len(found) <= MAX_OBJECTS)",
    ): "one more is parsed, and the refusal says `10 JSON objects or more` of 11 as of 10",
    (
        "core/input_checks.py",
        "_find_balanced_object",
        "depth == 0 and len(found) < MAX_OBJECTS "
        "and isinstance(value := _parse_or_none(text[start : token.end()]), dict)",
        "(len(found) < MAX_OBJECTS and isinstance((value := _parse_or_none(text[start:token.end()])), dict))",
    ): "a shorter way: from the outermost bracket to an inner end no text is balanced, so none of them is parsed",
    **{
        (
            "core/input_checks.py",
            "first_problem",
            "first = error.errors(include_url=False, include_input=False, include_context=False)[0]",
            f"first = error.errors(include_url={url}, include_input={value}, include_context={context})[0]",
        ): "a shorter way: of what is included, only the kind, the place and the message are read"
        for url, value, context in ((True, False, False), (False, True, False), (False, False, True))
    },
    **{
        (
            "app/answer_checks.py",
            "_make_answer",
            "text = (result.kept, full_text) if result.kept is not None and full_text is not None else None",
            f"text = (result.kept, full_text) if ({condition}) else None",
        ): "shorten gives both or neither; the type checker has to be told of each"
        for condition in (
            "full_text is not None",
            "result.kept is not None",
            "result.kept is not None or full_text is not None",
        )
    },
    (
        "core/replay.py",
        "Runner.branch_of",
        "while self.branches and (path := enclosing_path(path)):",
        "while ((path := enclosing_path(path))):",
    ): "a shorter way where no branch has limits of its own: without it the loop finds none of them",
    **{
        (
            "core/replay.py",
            "Runner.try_begin",
            "if gathering is None and waiting_flow is not None and waiting_flow.parent is None:",
            f"if {condition} and waiting_flow.parent is None:",
        ): "a shorter way for a step in no branch: without it no branch is found around it, and none forbids it"
        for condition in (
            "gathering is None and (waiting_flow is None)",
            "(gathering is not None) and waiting_flow is not None",
        )
    },
    (
        "core/replay.py",
        "Runner._owner_of",
        f"{OWNER} gathering.waiting_flow if gathering is not None else None",
        f"{OWNER} (gathering.waiting_flow)",
    ): "a step is asked for by a flow or by a gather, one of both; the type checker has to be told",
    (BENEATH, "", FLAGS.format(0, 0), FLAGS.format(1, 0)): ELSEWHERE,
    (BENEATH, "", FLAGS.format(0, 0), FLAGS.format(0, 1)): ELSEWHERE,
    **{
        (BENEATH, "", line.format(0), line.format(1)): ELSEWHERE
        for line in (
            'FILE = _COMMON | getattr(os, "O_NONBLOCK", {})' + FIFO,
            'FOLDER = _COMMON | getattr(os, "O_DIRECTORY", {})',
            '_NOFOLLOW = getattr(os, "O_NOFOLLOW", {})',
        )
    },
    (BENEATH, "_file_system", 'return device, ""', "return None"): ELSEWHERE,
    **{
        (BENEATH, "_birth_time", 'return str(getattr(found, "st_birthtime", ""))', other): ELSEWHERE
        for other in ("return None", "return str(getattr(found, 'st_birthtime?', \"\"))")
    },
    (
        "gate_rules.py",
        "CompiledRule.concerns_folders",
        PREFIXES.format(1),
        PREFIXES.format(0),
    ): "without a most it is split further, and the first piece is the same",
    **{
        (BENEATH, "", RESOLVE.format("0x01 | 0x02 | 0x04 | 0x08"), RESOLVE.format(bits)): "the same bits"
        for bits in ("0x01 | 3 | 0x04 | 0x08", "0x01 | 0x02 | 5 | 0x08", "0x01 | 0x02 | 0x04 | 9")
    },
    (BENEATH, "", RESOLVE.format("0x01 | 0x02 | 0x04 | 0x08"), RESOLVE.format("0x01 | 1 | 0x04 | 0x08")): (
        "NO_SYMLINKS implies NO_MAGICLINKS"
    ),
    (BENEATH, "", TRIES.format(8), TRIES.format(7)): NOT_AGAIN,
    (BENEATH, "", TRIES.format(8), TRIES.format(9)): NOT_AGAIN,
    (
        BENEATH,
        "_openat2.openat2",
        "if code not in (errno.EAGAIN, errno.EINTR):",
        "if (code in (errno.EAGAIN, errno.EINTR)):",
    ): f"{NOT_AGAIN}; any other error comes again at each try",
    (BENEATH, "_openat2.openat2", "break", "continue"): "any other error comes again at each try, only later",
    (
        BENEATH,
        "_openat2",
        "syscall.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]",
        "pass",
    ): "on this machine the values pass alike without their types; they are for others",
    (BENEATH, "_openat2", "syscall.restype = ctypes.c_long", "pass"): "a descriptor and -1 fit an int as well",
    (BENEATH, "find_renameat2", "renameat2.restype = ctypes.c_int", "pass"): "an int is what ctypes takes it for",
    (BENEATH, "", CACHED.format("0x20"), CACHED.format("33")): "1 is NO_XDEV, which is asked for too",
    (BENEATH, "", LOCAL.format('"f2fs"'), LOCAL.format("'f2fs?'")): "no test has such a file system",
    (
        BENEATH,
        "memory_opener",
        'if not sys.platform.startswith("linux") or not hasattr(os, "RWF_NOWAIT"):',
        "if (not sys.platform.startswith('linux') and (not hasattr(os, 'RWF_NOWAIT'))):",
    ): "on Linux with it both are false; elsewhere there is neither",
    (
        BENEATH,
        "_birth_time",
        "if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, answer) != 0:",
        "if (statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, answer) != 0):",
    ): "this system has it",
    (OPENED, "", AT_ONCE.format(8), AT_ONCE.format(7)): "another bound would do as well",
    (OPENED, "_read", "while piece and have < count:", "while (piece):"): "what is read once more is nothing",
    (
        OPENED,
        "_kind",
        'return "file" if entry.is_file(follow_symlinks=False) else "other"',
        'return "file" if entry.is_file(follow_symlinks=True) else "other"',
    ): "a link was told before",
    (
        BENEATH,
        "_openat2",
        "how_type = ctypes.c_uint64 * 3 # struct open_how: flags, mode, resolve",
        "how_type = ctypes.c_uint64 * 4 # struct open_how: flags, mode, resolve",
    ): "a longer struct whose rest is zero is the same call",
    **{
        (
            BENEATH,
            "find_renameat2",
            NO_NAME.format("-1"),
            NO_NAME.format(folder),
        ): "no name is in no folder, whichever it is"
        for folder in ("(1)", "-2", "-0")
    },
    (
        BENEATH,
        "_file_system",
        'with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as info:',
        "with open(f\"/proc/self/fdinfo/{fd}\", encoding='ascii?') as info:",
    ): "a codec is found by the letters and digits of its name",
    ("core/input_checks.py", "_find_balanced_object", "elif depth > 0:", "elif (depth >= 0):"): (
        "at depth 0 only opening brackets are looked for, so that no other one comes here"
    ),
    (
        "budget/reservation.py",
        "_grant_time",
        "spare = ((caps.milliseconds or 0) + CLOSING_MS - used) // max(1, request.time_shares)",
        "spare = (((caps.milliseconds)) + CLOSING_MS - used) // max(1, request.time_shares)",
    ): "asked only where time is limited; the type checker has to be told",
    (
        "gate.py",
        "Gate.secret_file_test",
        'tool.effect == "read"',
        "tool.effect == 'read?'",
    ): "then each call is judged by itself, with the same end: a law test compares them",
    **{
        ("server/http_guard.py", "", f'{name} = "{key}"', f"{name} = '{key}?'"): (
            "whoever writes or reads it takes the key by this name, so that another text is as good"
        )
        for name, key in (("METHOD", "kairos.method"), ("TOOL", "kairos.tool"))
    },
    (
        "server/http_guard.py",
        "error_response",
        "body = error.model_dump_json(by_alias=True, exclude_unset=True)",
        "body = error.model_dump_json(by_alias=False, exclude_unset=True)",
    ): "no field of an error has an alias",
    (
        "gate.py",
        "Gate.recheck",
        "touched_paths = set(call.touched.names) if call.touched is not None else set()",
        "touched_paths = (set(call.touched.names))",
    ): "with_touched_paths has just found what the call touches; the type checker has to be told",
    **{
        (
            "tools/commands/program_names.py",
            "program_finder.find",
            "if located is None or real is None:",
            f"if ({condition}):",
        ): "either both are there or neither is; the type checker has to be told of each"
        for condition in ("located is None", "real is None", "located is None and real is None")
    },
    (
        "tools/files/workspace.py",
        "_read",
        "if len(piece) == count or offset + len(piece) == size:",
        "if (len(piece) == count):",
    ): "a shorter way: without it one more read learns that there is nothing",
    (
        "tools/files/workspace.py",
        "_read",
        "if len(piece) == count or offset + len(piece) == size:",
        "if (offset + len(piece) == size):",
    ): "a shorter way: without it one more read learns that there is nothing",
    (
        "tools/files/workspace.py",
        "_read",
        "while piece and have < count:",
        "while piece and (have <= count):",
    ): "reads nothing once more",
    (
        "tools/files/workspace.py",
        "_read",
        "if len(piece) == count or offset + len(piece) == size:",
        "if (len(piece) == count and offset + len(piece) == size):",
    ): "a shorter way: without it one more read learns that there is nothing",
    (
        "tools/files/workspace.py",
        "read_opened",
        'content = _read(fd, limit + 1, 0, status.st_size) if status.st_size <= limit else b""',
        'content = _read(fd, limit + 2, 0, status.st_size) if status.st_size <= limit else b""',
    ): "one byte more than the most is too much, and so are two",
    (
        "tools/files/workspace.py",
        "Workspace._refuse_private",
        "statuses = (os.stat(folder, dir_fd=folder_fd, follow_symlinks=False) for folder in folders)",
        "statuses = (os.stat(folder, dir_fd=folder_fd, follow_symlinks=True) for folder in folders)",
    ): "these are the folders of a path that was opened, and none is opened through a link",
    (
        "core/input_checks.py",
        "_brackets_in_prose",
        'depth += 1 if token[0] in "[{" else -1',
        "depth += 1 if (token[0] not in '[{') else -1",
    ): "asked is only whether depth is 0, and it is so at the same places below as above",
}
