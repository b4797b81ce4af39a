//! Text to tokens.

use crate::VertexError;

/// Bytes of a program at most.
const LONGEST_TEXT: usize = 1 << 20;

/// A piece of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    Word(String),
    Integer(i64),
    Symbol(&'static str),
    Comment(String),
    End,
}

impl Token {
    pub fn describe(&self) -> String {
        match self {
            Self::Word(word) => format!("{word:?}"),
            Self::Integer(value) => format!("number {value}"),
            Self::Symbol(symbol) => format!("{symbol:?}"),
            Self::Comment(_) => "a comment".to_owned(),
            Self::End => "the end".to_owned(),
        }
    }
}

/// A token and where it begins, from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlacedToken {
    pub token: Token,
    pub line: u32,
    pub column: u32,
}

/// Longer ones first.
const SYMBOLS: [&str; 33] = [
    "==", "!=", "<=", ">=", "&&", "||", "+=", "&=", "|=", "^=", "{", "}", "(", ")", ",", ";", ".",
    "=", "<", ">", "+", "-", "*", "/", "%", "&", "|", "^", "!", ":", "[", "]", "?",
];

/// Splits text into tokens; the last one is [`Token::End`].
pub(crate) fn lex(text: &str) -> Result<Vec<PlacedToken>, VertexError> {
    let mut tokens = Vec::new();
    if text.len() > LONGEST_TEXT {
        return Err(VertexError::Syntax {
            line: 1,
            column: 1,
            found: format!("a text of {} bytes", text.len()),
            expected: format!("at most {LONGEST_TEXT}"),
        });
    }
    let mut last = 1;
    for (number, content) in text.lines().enumerate() {
        last = number as u32 + 1;
        lex_line(content, last, &mut tokens)?;
    }
    tokens.push(PlacedToken { token: Token::End, line: last, column: 1 });
    Ok(tokens)
}

fn lex_line(content: &str, line: u32, tokens: &mut Vec<PlacedToken>) -> Result<(), VertexError> {
    let mut rest = content;
    loop {
        rest = rest.trim_start();
        let column = content[..content.len() - rest.len()].chars().count() as u32 + 1;
        let Some(first) = rest.chars().next() else { return Ok(()) };
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let length = if rest.starts_with("//") {
            rest.len()
        } else if word(first) {
            rest.find(|c| !word(c)).unwrap_or(rest.len())
        } else {
            SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)).map_or(0, |s| s.len())
        };
        let bad = |found: String, expected: &str| VertexError::Syntax {
            line,
            column,
            found,
            expected: expected.to_owned(),
        };
        if length == 0 {
            return Err(bad(format!("{first:?}"), "a name, a number or a symbol"));
        }
        let (piece, after) = rest.split_at(length);
        let token = if let Some(comment) = piece.strip_prefix("//") {
            Token::Comment(comment.trim().to_owned())
        } else if first.is_ascii_digit() {
            let value = piece.parse().map_err(|_| bad(format!("{piece:?}"), "a 64-bit number"));
            Token::Integer(value?)
        } else if word(first) {
            Token::Word(piece.to_owned())
        } else {
            Token::Symbol(SYMBOLS.iter().find(|symbol| **symbol == piece).copied().unwrap_or("?"))
        };
        tokens.push(PlacedToken { token, line, column });
        rest = after;
    }
}
