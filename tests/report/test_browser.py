"""Reports in a real Chromium: nothing in the console, no requests, no sideways scrolling, pictures, and contrast."""

import pytest

from browser import PROGRAM, running_browser
from tikas.report.model import model_page
from tikas.report.page import write

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed")

PICTURES = "[...document.images].map(each => [each.complete && each.naturalWidth, each.width, each.height, each.alt])"
CUT_OFF = """
[...document.querySelectorAll("body *")].filter(each => !each.closest(".scroll, pre, svg") &&
    (each.getBoundingClientRect().right > innerWidth + 0.5 || each.getBoundingClientRect().left < -0.5)
).map(each => each.outerHTML.slice(0, 80))
"""
LOW_CONTRAST = """
(() => {
  const channels = color => color.match(/[\\d.]+/g).map(Number);
  const luminance = color => channels(color).slice(0, 3).map(value => value / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  const background = element => {
    for (; element; element = element.parentElement) {
      const color = getComputedStyle(element).backgroundColor;
      if ((channels(color)[3] ?? 1) > 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim()) continue;
    const [one, other] = [getComputedStyle(element).color, background(element)].map(luminance);
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) low.push([element.tagName, ratio]);
  }
  return low;
})()
"""
SMALLEST_TEXT = """
Math.min(...[...document.querySelectorAll("body *")].map(each => parseFloat(getComputedStyle(each).fontSize)))
"""
DARK_PIXELS = """
(async () => {
  const image = document.images[0];
  const canvas = Object.assign(document.createElement("canvas"), {width: image.width, height: image.height});
  canvas.getContext("2d").drawImage(image, 0, 0, image.width, image.height);
  const data = canvas.getContext("2d").getImageData(0, 0, image.width, image.height).data;
  let [dark, light] = [0, 0];
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] < 200) continue;
    const value = data[at] + data[at + 1] + data[at + 2];
    if (value < 150) dark += 1;
    if (value > 650) light += 1;
  }
  return [dark, light];
})()
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with running_browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module", params=["digits", "cancer", "no rows"])
def address(request, tmp_path_factory):
    model, rows = request.getfixturevalue("digits" if request.param == "digits" else "cancer")
    path = tmp_path_factory.mktemp("page") / "page.html"
    page = model_page(model, request.param, None if request.param == "no rows" else rows)
    return write(path, page).as_uri()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 800, 1400])
def test_a_page_is_complete_quiet_and_readable(browser, address, width, dark):
    browser.open(address, width, dark=dark)
    assert browser.problems == []
    assert browser.requests == [address]
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate(CUT_OFF) == []
    pictures = browser.evaluate(PICTURES)
    assert len(pictures) >= 4
    for natural, shown, height, alt in pictures:
        assert natural
        assert shown >= 90
        assert height >= 20
        assert alt
    assert browser.evaluate(LOW_CONTRAST) == []
    assert browser.evaluate(SMALLEST_TEXT) >= 13


def test_text_in_pictures_follows_the_color_scheme(browser, address):
    """On the light page, dark pixels; on the dark one, light pixels in their place."""
    found = []
    for dark in (False, True):
        browser.open(address, 1400, dark=dark)
        found.append(browser.evaluate(DARK_PIXELS))
    (dark_on_light, _), (dark_on_dark, light_on_dark) = found
    assert dark_on_light > 5 * dark_on_dark
    assert light_on_dark > dark_on_light / 3


def test_a_page_prints_on_white(browser, address, tmp_path):
    browser.open(address, 1400, dark=True)
    browser.print(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate("getComputedStyle(document.body).color") == "rgb(29, 34, 40)"
    assert browser.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"


def test_a_page_can_be_used_with_the_keyboard(browser, address):
    browser.open(address, 360)
    links = browser.evaluate("[...document.querySelectorAll('nav a')].map(each => each.hash.slice(1))")
    headings = browser.evaluate("[...document.querySelectorAll('h2')].map(each => each.id)")
    assert links == headings
    assert browser.evaluate("[...document.querySelectorAll('.scroll')].every(each => each.tabIndex == 0)")
