//! Tokens of CUDA C, with their places in the source. Comments and directives are no tokens.

use std::ops::Range;

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Word,
    Number,
    Sign,
    Text,
}

/// A token and its bytes in the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub kind: TokenKind,
    pub span: Range<usize>,
}

/// Signs of more than one character, longest first.
const SIGNS: [&str; 23] = [
    "<<<", ">>>", "<<=", ">>=", "...", "++", "--", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=",
    "==", "!=", "<=", ">=", "&&", "||", "->", "::",
];

/// The tokens of a source. What is no token of C is skipped: the compiler judges it.
pub(crate) fn tokenize(source: &str) -> Vec<Token> {
    let bytes = source.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    let mut line_starts = true;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let byte = bytes[at];
        let start = at;
        if byte == b'\n' {
            line_starts = true;
            at += 1;
        } else if byte.is_ascii_whitespace() {
            at += 1;
        } else if rest.starts_with(b"//") {
            at += rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
        } else if rest.starts_with(b"/*") {
            let end = rest[2..].windows(2).position(|w| w == b"*/");
            at = end.map_or(bytes.len(), |e| at + 2 + e + 2);
        } else if byte == b'#' && line_starts {
            at = end_of_directive(bytes, at);
        } else {
            line_starts = false;
            let (kind, len) = token(source, rest, at);
            at += len;
            if let Some(kind) = kind {
                tokens.push(Token { kind, span: start..at });
            }
        }
    }
    tokens
}

fn end_of_directive(bytes: &[u8], start: usize) -> usize {
    let mut at = start;
    while at < bytes.len() {
        if bytes[at] == b'\n' && bytes[at - 1] != b'\\' {
            break;
        }
        at += 1;
    }
    at
}

fn token(source: &str, rest: &[u8], at: usize) -> (Option<TokenKind>, usize) {
    let byte = rest[0];
    let run = |keep: fn(u8) -> bool| rest.iter().position(|b| !keep(*b)).unwrap_or(rest.len());
    if byte.is_ascii_alphabetic() || byte == b'_' {
        return (Some(TokenKind::Word), run(|b| b.is_ascii_alphanumeric() || b == b'_'));
    }
    if byte.is_ascii_digit() || (byte == b'.' && rest.get(1).is_some_and(u8::is_ascii_digit)) {
        return (Some(TokenKind::Number), run(|b| b.is_ascii_alphanumeric() || b == b'.'));
    }
    if byte == b'"' || byte == b'\'' {
        let mut len = 1;
        while len < rest.len() && rest[len] != byte && rest[len] != b'\n' {
            len += if rest[len] == b'\\' { 2 } else { 1 };
        }
        return (Some(TokenKind::Text), whole_characters(source, at, len + 1));
    }
    if let Some(sign) = SIGNS.iter().find(|s| rest.starts_with(s.as_bytes())) {
        return (Some(TokenKind::Sign), sign.len());
    }
    if byte.is_ascii() {
        return (Some(TokenKind::Sign), 1);
    }
    (None, whole_characters(source, at, 1))
}

/// At least `len` bytes from `at`, up to the end of a character or of the source.
fn whole_characters(source: &str, at: usize, len: usize) -> usize {
    let mut end = (at + len).min(source.len());
    while !source.is_char_boundary(end) {
        end += 1;
    }
    end - at
}
