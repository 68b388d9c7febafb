// Browsers start no worker of a page that was opened as a file. There the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inside = this.frame.contentWindow;
      this.inside.postMessage = (data) => this.onmessage?.(new MessageEvent("message", { data }));
      const script = this.inside.document.createElement("script");
      this.loaded = new Promise((done) => { script.onload = done; });
      script.src = new URL(url, location);
      this.inside.document.body.append(script);
    }
    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
