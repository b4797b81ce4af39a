//! The kernels of a source: names, arrays and scalars, and which arrays are written.

use super::lex::{tokenize, Token, TokenKind};
use crate::kernel_array::KernelArray;
use std::ops::Range;

/// The longest source that is read: no kernel written by hand comes near.
const SOURCE_LIMIT: usize = 4 << 20;

/// A parameter that is no pointer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelScalar {
    /// Its name.
    pub name: String,
    /// Its type in the source.
    pub kind: String,
}

/// A kernel of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelSignature {
    /// Its name.
    pub name: String,
    /// Arrays, in the order of the parameters.
    pub arrays: Vec<KernelArray>,
    /// Scalars, in the order of the parameters.
    pub scalars: Vec<KernelScalar>,
    /// Bytes of its body in the source, without the braces.
    pub(crate) body: Range<usize>,
    /// Where the kernel's declaration begins.
    pub(crate) start: usize,
}

/// Why a source cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// Too long.
    #[error("the source has {bytes} bytes; kernels of up to {SOURCE_LIMIT} bytes are read")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// There is no kernel in it.
    #[error(
        "the source has no __global__ function with a body; name a file that holds the kernel \
        itself"
    )]
    NoKernel,
    /// No kernel of this name.
    #[error("the source has no kernel {name}; it has {found}")]
    NoSuchKernel {
        /// The name.
        name: String,
        /// Those that there are.
        found: String,
    },
    /// No array of this name.
    #[error("kernel {kernel} has no array {array}; it has {found}")]
    NoSuchArray {
        /// The kernel.
        kernel: String,
        /// The name.
        array: String,
        /// Those that there are.
        found: String,
    },
    /// A placement that the source does not allow.
    #[error(transparent)]
    Illegal(#[from] crate::placement::IllegalPlacement),
}

/// Tokens with the text they are of.
pub(crate) struct TokenText<'a> {
    pub source: &'a str,
    pub tokens: Vec<Token>,
    /// For each opening bracket, the one that closes it.
    closers: Vec<Option<usize>>,
}

impl<'a> TokenText<'a> {
    pub fn new(source: &'a str) -> Self {
        let tokens = tokenize(source);
        let mut closers = vec![None; tokens.len()];
        let mut open = Vec::new();
        for (at, token) in tokens.iter().enumerate() {
            match &source[token.span.clone()] {
                "(" | "[" | "{" => open.push(at),
                ")" | "]" | "}" => {
                    if let Some(opener) = open.pop() {
                        closers[opener] = Some(at);
                    }
                }
                _ => {}
            }
        }
        Self { source, tokens, closers }
    }

    /// The text of a token; empty behind the last.
    pub fn text(&self, at: usize) -> &'a str {
        self.tokens.get(at).map_or("", |t| &self.source[t.span.clone()])
    }

    /// The index of the bracket that closes the one at `open`.
    pub fn closing(&self, open: usize) -> Option<usize> {
        self.closers.get(open).copied().flatten()
    }

    /// Tokens whose spans lie in these bytes.
    pub fn within(&self, bytes: &Range<usize>) -> Range<usize> {
        let first = self.tokens.partition_point(|t| t.span.start < bytes.start);
        let end = self.tokens.partition_point(|t| t.span.start < bytes.end);
        first..end
    }
}

/// All kernels of a source.
///
/// # Errors
/// None in it, or a source that is too long.
pub fn find_kernels(source: &str) -> Result<Vec<KernelSignature>, SourceError> {
    if source.len() > SOURCE_LIMIT {
        return Err(SourceError::TooLong { bytes: source.len() });
    }
    let text = TokenText::new(source);
    let mut kernels = Vec::new();
    let mut at = 0;
    while at < text.tokens.len() {
        if text.text(at) == "__global__" {
            if let Some((kernel, end)) = read_kernel(&text, at) {
                kernels.push(kernel);
                at = end;
            }
        }
        at += 1;
    }
    if kernels.is_empty() {
        return Err(SourceError::NoKernel);
    }
    Ok(kernels)
}

fn read_kernel(text: &TokenText<'_>, at: usize) -> Option<(KernelSignature, usize)> {
    // `__launch_bounds__(...)` stands before the name as well: the name is the word before the
    // parenthesis that a brace follows.
    let mut open = at + 1;
    let (name, parameters_end) = loop {
        while !matches!(text.text(open), "(" | "{" | ";" | "") {
            open += 1;
        }
        if text.text(open) != "(" {
            return None;
        }
        let close = text.closing(open)?;
        if text.text(close + 1) == "{" {
            break (text.text(open - 1), close);
        }
        open = close + 1;
    };
    let body_open = parameters_end + 1;
    let body_close = text.closing(body_open)?;
    let body = text.tokens[body_open].span.end..text.tokens[body_close].span.start;
    let (mut arrays, mut scalars) = (Vec::new(), Vec::new());
    for parameter in split_parameters(text, open + 1..parameters_end) {
        read_parameter(text, parameter, &mut arrays, &mut scalars);
    }
    for array in &mut arrays {
        judge_uses(text, body_open + 1..body_close, array);
        array.has_tile = text.source.contains(&format!("TILE_{}", array.name));
    }
    let start = match (text.text(at.wrapping_sub(2)), text.text(at.wrapping_sub(1))) {
        ("extern", "\"C\"") => text.tokens[at - 2].span.start,
        _ => text.tokens[at].span.start,
    };
    Some((KernelSignature { name: name.to_owned(), arrays, scalars, body, start }, body_close))
}

fn split_parameters(text: &TokenText<'_>, range: Range<usize>) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let mut start = range.start;
    let mut depth = 0_i32;
    for at in range.clone() {
        match text.text(at) {
            "(" | "[" | "<" => depth += 1,
            ")" | "]" | ">" => depth -= 1,
            "," if depth == 0 => {
                parts.push(start..at);
                start = at + 1;
            }
            _ => {}
        }
    }
    if start < range.end {
        parts.push(start..range.end);
    }
    parts
}

fn read_parameter(
    text: &TokenText<'_>,
    range: Range<usize>,
    arrays: &mut Vec<KernelArray>,
    scalars: &mut Vec<KernelScalar>,
) {
    let words: Vec<&str> = range
        .clone()
        .filter(|at| text.tokens[*at].kind == TokenKind::Word)
        .map(|at| text.text(at))
        .filter(|w| {
            !matches!(*w, "const" | "volatile" | "__restrict__" | "restrict" | "__restrict")
        })
        .collect();
    let Some((name, kind)) = words.split_last().filter(|(_, kind)| !kind.is_empty()) else {
        return;
    };
    let kind = kind.join(" ");
    let pointer = range.clone().any(|at| matches!(text.text(at), "*" | "["));
    if !pointer {
        scalars.push(KernelScalar { name: (*name).to_owned(), kind });
        return;
    }
    let declaration = text.tokens[range.start].span.start..text.tokens[range.end - 1].span.end;
    arrays.push(KernelArray {
        name: (*name).to_owned(),
        element_bytes: element_bytes(&kind),
        element: kind,
        written: false,
        escapes: false,
        atomic: false,
        has_tile: false,
        declaration,
    });
}

/// Bytes of the built-in types; 4 for a type that the source defines.
fn element_bytes(kind: &str) -> u64 {
    match kind {
        "char" | "unsigned char" | "signed char" | "bool" | "uint8_t" | "int8_t" => 1,
        "short" | "unsigned short" | "__half" | "half" | "uint16_t" | "int16_t" => 2,
        "double" | "long long" | "unsigned long long" | "long" | "size_t" | "float2" | "int2"
        | "uint2" | "uint64_t" | "int64_t" => 8,
        "float4" | "int4" | "uint4" | "double2" => 16,
        _ => 4,
    }
}

const ASSIGNMENTS: [&str; 13] =
    ["=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--"];

fn judge_uses(text: &TokenText<'_>, body: Range<usize>, array: &mut KernelArray) {
    for at in body {
        let used = text.tokens[at].kind == TokenKind::Word && text.text(at) == array.name;
        if !used || matches!(text.text(at - 1), "." | "->") {
            continue;
        }
        let close = if text.text(at + 1) == "[" { text.closing(at + 1) } else { None };
        let Some(close) = close else {
            array.escapes = true;
            array.written = true;
            continue;
        };
        let mut next = close + 1;
        while text.text(next) == "." {
            next += 2;
        }
        let before = text.text(at - 1);
        // `&array[i]` is handed to an atomic function, or kept: both may write.
        let address = before == "&" && matches!(text.text(at - 2), "(" | "," | "=" | "return");
        array.atomic |= address;
        if ASSIGNMENTS.contains(&text.text(next)) || matches!(before, "++" | "--") || address {
            array.written = true;
        }
    }
}
