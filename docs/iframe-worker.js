// A browser starts no worker from a file. Where the site is opened as one, the theme's search runs
// in a hidden frame instead, which takes and gives messages as a worker does.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.addEventListener("load", () => this.run(frame.contentWindow, url), { once: true });
      document.body.append(frame);
    }

    run(inner, url) {
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inner.document.createElement("script");
      script.src = url;
      script.onload = () => {
        this.postMessage = (data) => inner.dispatchEvent(new MessageEvent("message", { data }));
        this.waiting.forEach(this.postMessage);
      };
      inner.document.body.append(script);
    }

    postMessage(data) {
      this.waiting.push(data);
    }
  };
}
