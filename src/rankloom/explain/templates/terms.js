// Terms explained where they stand: on hover, on focus and on tap.
class Terms {
  constructor(glossary) {
    this.glossary = glossary;
    this.note = make("div", { id: "term-note", role: "tooltip", hidden: true });
    document.body.append(this.note);
    document.addEventListener("pointerover", (event) => this.open(event.target.closest("[data-term]")));
    document.addEventListener("focusin", (event) => this.open(event.target.closest("[data-term]")));
    document.addEventListener("click", (event) => this.open(event.target.closest("[data-term]")));
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.open(null));
    window.addEventListener("scroll", () => this.term && this.place(), { passive: true, capture: true });
  }

  open(term) {
    if (term === this.term) return;
    if (this.term) this.term.removeAttribute("aria-describedby");
    this.term = term;
    this.note.hidden = !term;
    if (!term) return;
    const [word, meaning] = this.glossary[term.dataset.term];
    this.note.replaceChildren(make("b", {}, word), ` ${meaning}`);
    term.setAttribute("aria-describedby", "term-note");
    this.place();
  }

  /** Below the term, or above it where there is no room; gone when the term is out of sight. */
  place() {
    const at = this.term.getBoundingClientRect();
    if (at.bottom < 0 || at.top > window.innerHeight) return this.open(null);
    const width = this.note.offsetWidth;
    const left = Math.max(8, Math.min(at.left, document.documentElement.clientWidth - width - 8));
    const below = at.bottom + 6 + this.note.offsetHeight < window.innerHeight;
    this.note.style.left = `${left}px`;
    this.note.style.top = `${below ? at.bottom + 6 : at.top - 6 - this.note.offsetHeight}px`;
    return undefined;
  }
}
