//! What a recording lacks, as its recorder knew at the end: sentences in the END block.

use crate::text::printable;

/// Sentences that are kept; further ones are counted.
pub const MAX_OMISSIONS: usize = 32;
/// Longest sentence that is kept, bytes.
const MAX_SENTENCE: usize = 600;

/// The sentences, each once.
#[derive(Debug, Default)]
pub struct Omissions {
    sentences: Vec<String>,
    further: u64,
}

impl Omissions {
    /// Adds a sentence without control characters; one that is there already is not added again.
    pub fn add(&mut self, sentence: &str) {
        let sentence = shorten(&printable(sentence));
        if self.sentences.contains(&sentence) {
            return;
        }
        if self.sentences.len() < MAX_OMISSIONS {
            self.sentences.push(sentence);
        } else {
            self.further += 1;
        }
    }

    /// As they lie in the section.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut lines: String = self.sentences.iter().map(|s| format!("{s}\n")).collect();
        if self.further > 0 {
            lines += &format!("{} further omissions are not named\n", self.further);
        }
        lines.into_bytes()
    }
}

/// From the section's bytes, which are not trusted.
pub fn from_bytes(bytes: &[u8]) -> Vec<String> {
    let lines = bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty());
    let text = |line: &[u8]| shorten(&printable(&String::from_utf8_lossy(line)));
    lines.take(MAX_OMISSIONS + 1).map(text).collect()
}

fn shorten(text: &str) -> String {
    let mut end = text.len().min(MAX_SENTENCE);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
