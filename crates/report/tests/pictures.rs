//! Every kind of picture at the widths of a phone, a tablet and a large screen: nothing is wider
//! than its page, no text covers another, no label is a number that nobody would write.

mod common;
#[path = "common/kinds.rs"]
mod kinds;

use std::path::{Path, PathBuf};
use std::process::Command;

const WIDTHS: [u32; 3] = [390, 800, 1600];

fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .flat_map(|folder| {
            ["chromium", "chromium-browser", "google-chrome"].map(|n| folder.join(n))
        })
        .find(|program| program.is_file())
}

/// What stands between tags.
fn texts(html: &str) -> impl Iterator<Item = &str> {
    html.split('>').filter_map(|part| part.split('<').next()).filter(|text| !text.is_empty())
}

#[test]
fn labels_are_written_as_people_write_numbers() {
    for (name, html) in kinds::pages() {
        let body = html.split("<main>").nth(1).expect("a body");
        let body = body.split("id=\"heat-data\"").next().expect("what comes before the data");
        for text in texts(body) {
            let digits = text.split(|c: char| !c.is_ascii_digit() && c != '.');
            let long = digits.filter_map(|n| n.split_once('.')).find(|(_, part)| part.len() > 6);
            assert_eq!(long, None, "{name}: {text}");
        }
        assert!(!body.contains("NaN") && !body.contains(">inf"), "{name}");
        assert!(html.matches("aria-label=").count() > 0, "{name}: pictures have names");
    }
}

#[test]
fn names_of_files_keep_their_end_and_verdicts_do_not_praise_what_is_slower() {
    let pages = kinds::pages();
    let of = |name: &str| &pages.iter().find(|p| p.0 == name).expect("a page").1;
    assert!(
        of("recording").contains("libanalysis.so.6.0.30<")
            && of("recording").contains("<th class=\"name\">…")
    );
    let close = of("close");
    let said = "No policy is faster than first touch (0.61 s): the best, \
        kernel:numa-balancing-with-tiering, takes 1.03 times its time";
    assert!(close.contains(said) && !close.contains("Fastest"), "{close}");
    let sweep = of("sweep");
    assert!(
        sweep.contains("Fastest policy: terrace, fast ")
            && sweep.contains("1.25 times as fast as first touch")
    );
    assert!(sweep.contains("first-touch, fast 8 MiB"), "{sweep}");
}

/// The parent page: each document in a frame of each width, and what is wrong in it.
const MEASURE: &str = r#"
var wrong = [], frames = document.querySelectorAll("iframe");
function measure() {
  frames.forEach(function (frame) {
    var page = frame.contentDocument, name = frame.title, width = frame.contentWindow.innerWidth;
    var say = function (what) { wrong.push(name + ": " + what); };
    if (page.documentElement.scrollWidth > width) say("is " + page.documentElement.scrollWidth + " wide");
    var shown = [].filter.call(page.querySelectorAll(".tick, .note, .bars .value, .bars .name, .bars .failed"),
      function (e) { return e.getClientRects().length > 0; });
    if (page.querySelectorAll(".chart, .bars").length > 0 && shown.length < 4) say("has no labels");
    var boxes = shown.map(function (e) { return { text: e.textContent, box: e.getBoundingClientRect() }; });
    boxes.forEach(function (a, i) {
      if (a.box.left < 0 || a.box.right > width + 0.5) say(a.text + " is cut off");
      boxes.slice(i + 1).forEach(function (b) {
        if (a.box.left < b.box.right - 1 && b.box.left < a.box.right - 1 &&
          a.box.top < b.box.bottom - 3 && b.box.top < a.box.bottom - 3) say(a.text + " covers " + b.text);
      });
    });
  });
  document.body.textContent = "measured " + frames.length + " wrong:" + JSON.stringify(wrong) + ":end";
}
window.addEventListener("load", measure);
"#;

fn frames(pages: &[(&str, String)]) -> String {
    let mut html = "<!DOCTYPE html><meta charset=\"utf-8\"><body>".to_owned();
    for (name, page) in pages {
        let inside = page.replace('&', "&amp;").replace('"', "&quot;");
        for width in WIDTHS {
            html += &format!(
                "<iframe title=\"{name} at {width}\" \
                    style=\"border:0;width:{width}px;height:900px\" srcdoc=\"{inside}\"></iframe>"
            );
        }
    }
    html + "<script>" + MEASURE + "</script>"
}

fn open(browser: &Path, folder: &Path, html: &str) -> String {
    let file = folder.join("frames.html");
    std::fs::write(&file, html).expect("written");
    let output = Command::new("timeout")
        .arg("120")
        .arg(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        .args(["--disable-component-update", "--no-first-run", "--proxy-server=127.0.0.1:9"])
        .args(["--window-size=1700,2000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(format!("file://{}", file.display()))
        .output()
        .expect("the browser starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn nothing_is_cut_off_or_covered_at_any_width() {
    let Some(browser) = chromium() else {
        println!("skipped: chromium not installed");
        return;
    };
    let folder = std::env::temp_dir().join(format!("terrace-pictures-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let pages = kinds::pages();
    let reported = open(&browser, &folder, &frames(&pages));
    std::fs::remove_dir_all(&folder).expect("removed");
    let count = format!("measured {} wrong:", pages.len() * WIDTHS.len());
    let wrong = reported.split(&count).nth(1).and_then(|rest| rest.split(":end").next());
    assert_eq!(wrong, Some("[]"), "{}", wrong.unwrap_or(&reported).replace("\",\"", "\n"));
}
