/** A box that follows what is added at its end, until the reader scrolls up; from the end on, it follows again. */

const NEAR = 32; // pixels from the end that still count as the end

export class Follower {
  #box;
  #button;
  #top = 0;
  #isFollowing = true;

  /**
   * @param {HTMLElement} box scrolls
   * @param {HTMLElement} content is in the box, and grows
   * @param {HTMLElement} button leads to the end; shown while the box does not follow
   */
  constructor(box, content, button) {
    this.#box = box;
    this.#button = button;
    box.addEventListener("scroll", () => this.#scrolled());
    button.addEventListener("click", () => this.follow());
    const watch = new ResizeObserver(() => this.#isFollowing && this.#toEnd());
    watch.observe(content);
    watch.observe(box);
  }

  /** To the end, and along with what comes. */
  follow() {
    this.#isFollowing = true;
    this.#toEnd();
  }

  #toEnd() {
    this.#box.scrollTop = this.#box.scrollHeight;
    this.#show();
  }

  /** What grows never scrolls up by itself: that was the reader. */
  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#box;
    const isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR;
    if (isAtEnd) this.#isFollowing = true;
    else if (scrollTop < this.#top - 1) this.#isFollowing = false;
    this.#top = scrollTop;
    this.#show();
  }

  #show() {
    this.#button.hidden = this.#isFollowing;
  }
}
