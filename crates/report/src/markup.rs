//! HTML that cannot be broken by what is put in it, and numbers as people read them.

use std::fmt::Write;
use terrace_types::{Bytes, BytesPerSec, Nanos};

/// Appends formatted text; writing to a `String` cannot fail.
macro_rules! put {
    ($to:expr, $($text:tt)*) => {{
        let _never_fails = std::fmt::Write::write_fmt($to, format_args!($($text)*));
    }};
}
pub(crate) use put;

const STYLE: &str = include_str!("../assets/style.css");
const SCRIPT: &str = include_str!("../assets/script.js");

/// Text made harmless between tags and inside quoted attributes. Control characters, which
/// could hide or reorder what a reader sees, become visible marks.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' | '\t' => safe.push(' '),
            c if c.is_control() || is_bidi_control(c) => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

const fn is_bidi_control(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}')
}

/// At most `limit` characters of `text`, escaped.
pub fn brief(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        None => escape(text),
        Some((end, _)) => format!("{}…", escape(&text[..end])),
    }
}

/// The last `limit` characters of a name, the cut marked: of a path, the end tells files apart.
pub fn name_end(name: &str, limit: usize) -> String {
    let count = name.chars().count();
    if count <= limit {
        return name.to_owned();
    }
    std::iter::once('…').chain(name.chars().skip(count - limit.saturating_sub(1))).collect()
}

/// JSON that may stand inside a `script` element: no `<`, `>` or `&` as such.
pub fn embed(json: &serde_json::Value) -> String {
    let mut safe = String::new();
    for c in json.to_string().chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _never_fails = write!(safe, "\\u{:04x}", c as u32);
            }
            c => safe.push(c),
        }
    }
    safe
}

/// A whole page. `title` is escaped here, `body` must be safe already.
pub fn page(title: &str, body: &str) -> String {
    let title = brief(title, 120);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\
         <footer>Made by terrace {version} from the recording alone. This file needs no network.\
         </footer>\n</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        version = env!("CARGO_PKG_VERSION"),
    )
}

/// A tile: a figure, what it is, and one line more.
pub fn tile(out: &mut String, figure: &str, what: &str, more: &str) {
    put!(
        out,
        "<div class=\"tile\"><div class=\"what\">{}</div><div class=\"figure\">{}</div>\
         <div class=\"more\">{}</div></div>\n",
        escape(what),
        escape(figure),
        escape(more)
    );
}

/// `1234567` as `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `1 page`, `2 pages`.
pub fn pages(n: u64) -> String {
    format!("{} page{}", count(n), if n == 1 { "" } else { "s" })
}

/// Bytes with their unit.
pub fn bytes(n: u64) -> String {
    Bytes(n).to_string()
}

/// Bytes a second with their unit.
pub fn rate(n: u64) -> String {
    BytesPerSec(n).to_string()
}

/// A time with its unit.
pub fn time(ns: u64) -> String {
    Nanos(ns).to_string()
}

/// Seconds with three digits that matter.
pub fn seconds(s: f64) -> String {
    if !s.is_finite() {
        "unknown".to_owned()
    } else if s >= 99.95 {
        format!("{s:.0} s")
    } else if s >= 9.995 {
        format!("{s:.1} s")
    } else if s >= 0.01 || s == 0.0 {
        format!("{s:.2} s")
    } else {
        format!("{:.2} ms", s * 1e3)
    }
}

/// A share as percent.
pub fn percent(share: f64) -> String {
    if !share.is_finite() {
        return "unknown".to_owned();
    }
    match share * 100.0 {
        0.0 => "0%".to_owned(),
        p if p.abs() < 0.095 => format!("{p:.2}%"),
        p if p.abs() < 9.95 => format!("{p:.1}%"),
        p => format!("{p:.0}%"),
    }
}

/// What stands where a figure is not known.
pub fn or_unknown(figure: Option<String>) -> String {
    figure.unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_gets_out_of_an_escape() {
        let nasty = "</script><img src=x onerror=\"alert('1')\">&\u{202e}\u{0}";
        let safe = escape(nasty);
        assert!(!safe.contains(['<', '>', '"', '\'', '\u{202e}', '\u{0}']), "{safe}");
        let embedded = embed(&serde_json::json!({ "x": nasty }));
        assert!(!embedded.contains(['<', '>', '&']), "{embedded}");
        let back: serde_json::Value = serde_json::from_str(&embedded).expect("still JSON");
        assert_eq!(back["x"], nasty);
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(count(0), "0");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!((pages(1), pages(1000)), ("1 page".to_owned(), "1,000 pages".to_owned()));
        assert_eq!(seconds(4.0613), "4.06 s");
        assert_eq!(seconds(12.345), "12.3 s");
        assert_eq!(seconds(f64::NAN), "unknown");
        assert_eq!(percent(0.0004), "0.04%");
        assert_eq!(percent(0.0123), "1.2%");
        assert_eq!(percent(0.81), "81%");
        assert_eq!(brief("abcdef", 3), "abc…");
        assert_eq!(
            (name_end("/lib/libc.so.6", 9), name_end("short", 9)),
            ("…ibc.so.6".into(), "short".into())
        );
    }
}
