//! Opens the report in headless Chromium, where there is one: what the script must draw is
//! there, nothing outside is asked for, nothing is complained about.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .flat_map(|folder| {
            ["chromium", "chromium-browser", "google-chrome"].map(|n| folder.join(n))
        })
        .find(|program| program.is_file())
}

/// The page as it is after its script ran, and what the browser logged.
fn open(browser: &Path, folder: &Path, html: &str) -> (String, String) {
    let file = folder.join("report.html");
    std::fs::write(&file, html).expect("written");
    let output = Command::new("timeout")
        .arg("120")
        .arg(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        .args(["--disable-component-update", "--no-first-run", "--enable-logging=stderr"])
        .args(["--proxy-server=127.0.0.1:9", "--window-size=1100,2000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(format!("file://{}", file.display()))
        .output()
        .expect("the browser starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn outside(html: &str) -> Vec<&str> {
    ["http://", "https://", "//cdn", "src=", "@import", "url(", "<link", "fetch(", "XMLHttpRequest"]
        .into_iter()
        .filter(|mark| html.contains(mark))
        .collect()
}

#[test]
fn the_report_opens_with_no_network_and_its_script_draws() {
    let Some(browser) = chromium() else {
        println!("skipped: chromium not installed");
        return;
    };
    let folder = std::env::temp_dir().join(format!("terrace-report-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let document = terrace_report::read(common::journal("./solver", "settled").as_bytes());
    let html = document.expect("readable").to_html();
    let (page, log) = open(&browser, &folder, &html);
    assert_eq!(page.matches("<canvas").count(), 2, "both maps are drawn:\n{log}");
    assert!(page.contains("data-drawn=\"4\"") && page.contains("linear-gradient"), "{log}");
    assert!(page.contains("accesses/s to a page (logarithmic)"));
    let complaints: Vec<&str> = log.lines().filter(|l| l.contains("CONSOLE")).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    assert_eq!(outside(&html), Vec::<&str>::new());

    let document = terrace_report::read(common::comparison("skew").as_bytes());
    let html = document.expect("readable").to_html();
    let (page, log) = open(&browser, &folder, &html);
    assert!(page.matches("class=\"bar ").count() == 5, "{log}");
    assert!(!log.contains("CONSOLE"), "{log}");
    assert_eq!(outside(&html), Vec::<&str>::new());
    std::fs::remove_dir_all(&folder).expect("removed");
}
