// Search runs in a worker, which browsers refuse to pages that were opened from a disk. There, a hidden frame does its work.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(script) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.title = "search"
      this.loaded = new Promise((resolve) => (this.frame.onload = resolve))
      window.__answerFromFrame = (data) => {
        const message = new MessageEvent("message", { data })
        this.dispatchEvent(message)
        if (this.onmessage) this.onmessage(message)
      }
      const answer = "<script>postMessage = (data) => parent.__answerFromFrame(data)</" + "script>"
      this.frame.srcdoc = answer + `<script src="${script}"></` + "script>"
      document.body.append(this.frame)
    }

    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
