// Search in pages that are opened from the disk: browsers start no Worker there, so its script runs in a frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.document.open();
      inside.document.write("<!doctype html><body></body>");
      inside.document.close();
      inside.postMessage = (data) => this.hear(data);
      inside.importScripts = (...scripts) =>
        scripts.reduce((after, script) => after.then(() => this.load(script)), Promise.resolve());
      this.load(String(address)).then(() => {
        this.ready = true;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      });
    }
    load(script) {
      return new Promise((resolve, reject) => {
        const element = this.frame.contentDocument.createElement("script");
        element.src = script;
        element.onload = resolve;
        element.onerror = reject;
        this.frame.contentDocument.body.append(element);
      });
    }
    hear(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }
    postMessage(data) {
      if (!this.ready) return void this.waiting.push(data);
      const inside = this.frame.contentWindow;
      inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
