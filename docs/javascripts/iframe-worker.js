// Browsers start no worker for a page of the file system. The search index then runs in a hidden
// frame of the page instead: a worker's script needs a global object, and messages both ways.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inside = this.frame.contentWindow;
      this.inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data: structuredClone(data) });
        this.onmessage?.(event);
        this.dispatchEvent(event);
      };
      this.loaded = new Promise((resolve, reject) => {
        const script = this.inside.document.createElement("script");
        script.src = new URL(url, document.baseURI).href;
        script.onload = resolve;
        script.onerror = () => {
          this.onerror?.(new ErrorEvent("error", { message: `cannot load ${url}` }));
          reject(new Error(`cannot load ${url}`));
        };
        this.inside.document.body.append(script);
      });
    }

    postMessage(data) {
      this.loaded.then(() => {
        const event = new MessageEvent("message", { data: structuredClone(data) });
        this.inside.dispatchEvent(event); // also calls its onmessage
      });
    }

    terminate() {
      this.frame.remove();
    }
  };
}
