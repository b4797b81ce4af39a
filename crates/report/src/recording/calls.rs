//! Call paths of a sampled recording: which calls led to the accesses.

use crate::markup::{count, escape, percent, put};
use serde_json::{json, Value};
use std::collections::HashMap;
use terrace_trace::{printable, CallFrame};
use terrace_types::text::clip;

/// Paths that are shown, and calls of each.
const MAX_PATHS: usize = 24;
const MAX_CALLS: usize = 16;
/// Paths on a terminal.
const TEXT_PATHS: usize = 8;

/// Samples by the calls that led to them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CallStudy {
    /// Samples and calls, the place of the access first; most samples first.
    pub paths: Vec<(u64, Vec<CallFrame>)>,
    names: HashMap<CallFrame, String>,
}

impl CallStudy {
    pub(super) fn add(&mut self, samples: u64, frames: &[CallFrame]) {
        self.paths.push((samples, frames.to_vec()));
    }

    /// Adds up equal paths of several processes.
    pub(super) fn finish(self) -> Self {
        let mut sums: HashMap<Vec<CallFrame>, u64> = HashMap::new();
        for (samples, frames) in self.paths {
            let sum = sums.entry(frames).or_default();
            *sum = sum.saturating_add(samples);
        }
        let mut paths: Vec<_> = sums.into_iter().map(|(frames, n)| (n, frames)).collect();
        paths.sort_unstable_by(|(n, a), (m, b)| m.cmp(n).then_with(|| a.cmp(b)));
        Self { paths, ..Self::default() }
    }

    /// All places, some of them several times.
    pub fn frames(&self) -> impl Iterator<Item = &CallFrame> {
        self.paths.iter().flat_map(|(_, frames)| frames)
    }

    /// Names places; others keep their file and byte.
    pub fn name(&mut self, names: &HashMap<CallFrame, String>) {
        self.names.extend(names.iter().map(|(frame, name)| (frame.clone(), name.clone())));
    }

    fn place(&self, frame: &CallFrame) -> String {
        printable(&self.names.get(frame).cloned().unwrap_or_else(|| frame.to_string()))
    }

    fn all(&self) -> f64 {
        self.paths.iter().map(|(n, _)| *n as f64).sum::<f64>().max(1.0)
    }

    /// A section of the page; none without paths.
    pub(super) fn html(&self, body: &mut String) {
        if self.paths.is_empty() {
            return;
        }
        body.push_str(
            "<section><h2>Calls that lead to the accesses</h2>\n<div class=\"wide\"><table \
                class=\"figures meter ours\">\n<tr><th>access, then its \
                callers</th><th>samples</th><th>of those with \
                callers</th><th></th></tr>\n",
        );
        for (samples, frames) in self.paths.iter().take(MAX_PATHS) {
            let share = *samples as f64 / self.all();
            let places: Vec<String> =
                frames.iter().take(MAX_CALLS).map(|f| escape(&self.place(f)).to_string()).collect();
            put!(
                body,
                "<tr><th class=\"name\">{}</th><td>{}</td><td>{}</td>\
                 <td class=\"track\"><i style=\"width:{:.1}%\"></i></td></tr>\n",
                places.join("<br>"),
                count(*samples),
                percent(share),
                100.0 * share
            );
        }
        body.push_str("</table></div>\n");
        if self.paths.len() > MAX_PATHS {
            let more = count((self.paths.len() - MAX_PATHS) as u64);
            put!(body, "<p class=\"small under\">And {more} more paths.</p>\n");
        }
        body.push_str("</section>\n");
    }

    /// Lines for a terminal.
    pub(super) fn text(&self, columns: usize, out: &mut String) {
        for (samples, frames) in self.paths.iter().take(TEXT_PATHS) {
            let places: Vec<String> =
                frames.iter().take(MAX_CALLS).map(|f| self.place(f)).collect();
            let line = format!(
                "{:>5} of samples with callers by {}",
                percent(*samples as f64 / self.all()),
                places.join(" < ")
            );
            put!(out, "{}\n", clip(&line, columns));
        }
    }

    /// Figures.
    pub(super) fn json(&self) -> Value {
        let path = |(samples, frames): &(u64, Vec<CallFrame>)| {
            let places: Vec<String> = frames.iter().map(|f| self.place(f)).collect();
            json!({ "samples": samples, "calls": places })
        };
        self.paths.iter().map(path).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_processes_are_added_up_and_named_where_names_are_known() {
        let frame = |file: &str, offset| CallFrame { file: file.into(), offset };
        let (leaf, root) = (frame("/bin/p", 0x10), frame("/bin/p", 0x20));
        let mut calls = CallStudy::default();
        calls.add(2, std::slice::from_ref(&leaf));
        calls.add(3, &[leaf.clone(), root.clone()]);
        calls.add(4, &[leaf.clone(), root.clone()]);
        let mut calls = calls.finish();
        calls.name(&HashMap::from([(leaf, "<fill> a.c:1".to_owned())]));
        let (mut html, mut text) = (String::new(), String::new());
        calls.html(&mut html);
        calls.text(80, &mut text);
        assert!(html.contains("&lt;fill&gt; a.c:1<br>p+0x20</th><td>7</td>"), "{html}");
        assert!(
            text.starts_with("  78% of samples with callers by <fill> a.c:1 < p+0x20\n"),
            "{text}"
        );
        assert_eq!(calls.json()[1]["samples"], 2);
    }
}
