//! Values and expressions: numbers that are known, or known but for what was loaded.

use crate::source::lex::TokenKind;
use crate::source::TokenText;
use std::ops::Range;

/// A value: `offset`, plus something unknown that `name` stands for; zero is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Value {
    pub name: u64,
    pub offset: i64,
}

impl Value {
    pub const fn known(offset: i64) -> Self {
        Self { name: 0, offset }
    }

    /// Something unknown, called by what it came of.
    pub fn unknown(of: &[u64]) -> Self {
        let hash = of.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, part| {
            (hash ^ part).wrapping_mul(0x0100_0000_01b3).rotate_left(17)
        });
        Self { name: hash | 1, offset: 0 }
    }

    pub const fn is_known(self) -> bool {
        self.name == 0
    }
}

/// What an expression needs of its surroundings.
pub(super) trait Scope {
    /// The value of a name, such as `i` or `threadIdx.x`.
    fn value(&self, name: &str) -> Option<Value>;
    /// The array of this name.
    fn array(&self, name: &str) -> Option<usize>;
    /// An access was made: returns what it gives.
    fn access(&mut self, array: usize, site: usize, index: Value, after: After) -> Value;
    /// An operation was made.
    fn operation(&mut self);
}

/// What stands around an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    /// It is read.
    Read,
    /// Its address is taken, for an atomic function.
    Address,
}

/// The longest nesting of an expression that is followed: deeper ones count as unknown.
const DEPTH: u32 = 64;

/// Evaluates the expression of these tokens.
pub(super) fn evaluate(text: &TokenText<'_>, tokens: Range<usize>, scope: &mut dyn Scope) -> Value {
    let mut parser = Parser { text, at: tokens.start, end: tokens.end, depth: 0, scope };
    let value = parser.ternary();
    // What follows the part that was understood may hold accesses as well.
    while parser.at < parser.end {
        parser.at += 1;
        if parser.at < parser.end {
            parser.ternary();
        }
    }
    value
}

struct Parser<'a, 'b> {
    text: &'a TokenText<'a>,
    at: usize,
    end: usize,
    depth: u32,
    scope: &'b mut dyn Scope,
}

const LEVELS: [&[&str]; 8] = [
    &["||"],
    &["&&"],
    &["|", "^"],
    &["&"],
    &["==", "!="],
    &["<", ">", "<=", ">="],
    &["+", "-", "<<", ">>"],
    &["*", "/", "%"],
];

impl Parser<'_, '_> {
    fn text(&self) -> &str {
        if self.at < self.end {
            self.text.text(self.at)
        } else {
            ""
        }
    }

    fn ternary(&mut self) -> Value {
        self.depth += 1;
        if self.depth > DEPTH {
            self.at = self.end;
            return Value::unknown(&[1]);
        }
        let condition = self.binary(0);
        let value = if self.text() == "?" {
            self.at += 1;
            let yes = self.ternary();
            if self.text() == ":" {
                self.at += 1;
            }
            let no = self.ternary();
            match condition.is_known() {
                true if condition.offset != 0 => yes,
                true => no,
                false if yes == no => yes,
                false => Value::unknown(&[condition.name, yes.name, no.name]),
            }
        } else {
            condition
        };
        self.depth -= 1;
        value
    }

    fn binary(&mut self, level: usize) -> Value {
        let Some(signs) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1);
        while let Some(sign) = signs.iter().find(|s| **s == self.text()) {
            self.at += 1;
            let right = self.binary(level + 1);
            self.scope.operation();
            left = apply(sign, left, right);
        }
        left
    }

    fn unary(&mut self) -> Value {
        self.depth += 1;
        if self.depth > DEPTH {
            self.at = self.end;
            return Value::unknown(&[1]);
        }
        let value = self.signed();
        self.depth -= 1;
        value
    }

    fn signed(&mut self) -> Value {
        match self.text() {
            "-" => {
                self.at += 1;
                let value = self.unary();
                apply("-", Value::known(0), value)
            }
            "+" | "*" => {
                self.at += 1;
                self.unary()
            }
            "!" => {
                self.at += 1;
                let value = self.unary();
                match value.is_known() {
                    true => Value::known(i64::from(value.offset == 0)),
                    false => value,
                }
            }
            "~" => {
                self.at += 1;
                let value = self.unary();
                match value.is_known() {
                    true => Value::known(!value.offset),
                    false => value,
                }
            }
            "&" => {
                self.at += 1;
                self.primary(After::Address)
            }
            "(" if self.is_cast() => {
                self.at = self.text.closing(self.at).map_or(self.end, |close| close + 1);
                self.unary()
            }
            _ => self.primary(After::Read),
        }
    }

    /// `(int)` and the like.
    fn is_cast(&self) -> bool {
        let Some(close) = self.text.closing(self.at) else { return false };
        let words = self.at + 1..close;
        !words.is_empty()
            && words.clone().all(|at| {
                matches!(
                    self.text.text(at),
                    "int"
                        | "unsigned"
                        | "float"
                        | "double"
                        | "long"
                        | "size_t"
                        | "const"
                        | "char"
                        | "short"
                        | "*"
                        | "signed"
                )
            })
    }

    fn primary(&mut self, after: After) -> Value {
        if self.at >= self.end {
            return Value::unknown(&[2]);
        }
        let kind = self.text.tokens[self.at].kind;
        let site = self.at;
        match kind {
            TokenKind::Number => {
                let value = number(self.text());
                self.at += 1;
                value
            }
            TokenKind::Word => self.word(site, after),
            _ if self.text() == "(" => {
                let close = self.text.closing(self.at).unwrap_or(self.end).min(self.end);
                let end = std::mem::replace(&mut self.end, close);
                self.at += 1;
                let value = self.ternary();
                self.at = self.end + 1;
                self.end = end;
                self.members(value)
            }
            _ => {
                self.at += 1;
                Value::unknown(&[3])
            }
        }
    }

    fn word(&mut self, site: usize, after: After) -> Value {
        let name = self.text().to_owned();
        self.at += 1;
        match self.text() {
            "[" => {
                let mut value = Value::unknown(&[4]);
                let mut first = true;
                while self.text() == "[" {
                    let close = self.text.closing(self.at).unwrap_or(self.end).min(self.end);
                    let end = std::mem::replace(&mut self.end, close);
                    self.at += 1;
                    let index = self.ternary();
                    self.at = close + 1;
                    self.end = end;
                    if first {
                        value = match self.scope.array(&name) {
                            Some(array) => self.scope.access(array, site, index, after),
                            None => Value::unknown(&[5, index.name, index.offset as u64]),
                        };
                    }
                    first = false;
                }
                self.members(value)
            }
            "(" => {
                let close = self.text.closing(self.at).unwrap_or(self.end).min(self.end);
                let end = std::mem::replace(&mut self.end, close);
                self.at += 1;
                let mut arguments = Vec::new();
                while self.at < self.end {
                    arguments.push(self.ternary());
                    self.at += 1;
                }
                self.at = close + 1;
                self.end = end;
                self.scope.operation();
                call(&name, &arguments)
            }
            "." => {
                let full = format!("{name}.{}", self.text.text(self.at + 1));
                if let Some(value) = self.scope.value(&full) {
                    self.at += 2;
                    return value;
                }
                let value = self.scope.value(&name).unwrap_or_else(|| Value::unknown(&[6]));
                self.members(value)
            }
            _ => self.scope.value(&name).unwrap_or_else(|| {
                Value::unknown(&name.bytes().map(u64::from).collect::<Vec<_>>())
            }),
        }
    }

    /// `.x` and `->x` behind a value that is in memory: unknown like the value.
    fn members(&mut self, value: Value) -> Value {
        while matches!(self.text(), "." | "->") {
            self.at += 2;
        }
        value
    }
}

fn number(text: &str) -> Value {
    let digits = text.trim_end_matches(['u', 'U', 'l', 'L']);
    let parsed = match digits.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    };
    parsed.map_or_else(|| Value::unknown(&[7, text.len() as u64]), Value::known)
}

fn call(name: &str, arguments: &[Value]) -> Value {
    let known: Option<Vec<i64>> =
        arguments.iter().map(|v| v.is_known().then_some(v.offset)).collect();
    match (name, known.as_deref()) {
        ("min", Some([a, b])) => Value::known(*a.min(b)),
        ("max", Some([a, b])) => Value::known(*a.max(b)),
        ("abs", Some([a])) => Value::known(a.saturating_abs()),
        _ => {
            let names = arguments.iter().flat_map(|a| [a.name, a.offset as u64]);
            Value::unknown(&names.chain(name.bytes().map(u64::from)).collect::<Vec<_>>())
        }
    }
}

/// The result of an operation. An unknown plus a number stays the same unknown.
pub(super) fn apply(sign: &str, left: Value, right: Value) -> Value {
    let (a, b) = (left.offset, right.offset);
    let truth = |holds: bool| Some(i64::from(holds));
    if left.is_known() && right.is_known() {
        let value = match sign {
            "+" => Some(a.wrapping_add(b)),
            "-" => Some(a.wrapping_sub(b)),
            "*" => Some(a.wrapping_mul(b)),
            "/" => a.checked_div(b),
            "%" => a.checked_rem(b),
            "<<" => a.checked_shl(b as u32),
            ">>" => a.checked_shr(b as u32),
            "&" => Some(a & b),
            "|" => Some(a | b),
            "^" => Some(a ^ b),
            "<" => truth(a < b),
            ">" => truth(a > b),
            "<=" => truth(a <= b),
            ">=" => truth(a >= b),
            "==" => truth(a == b),
            "!=" => truth(a != b),
            "&&" => truth(a != 0 && b != 0),
            "||" => truth(a != 0 || b != 0),
            _ => None,
        };
        return value.map_or_else(|| Value::unknown(&[8]), Value::known);
    }
    match (sign, left.is_known(), right.is_known()) {
        ("+", false, true) => Value { name: left.name, offset: a.wrapping_add(b) },
        ("+", true, false) => Value { name: right.name, offset: a.wrapping_add(b) },
        ("-", false, true) => Value { name: left.name, offset: a.wrapping_sub(b) },
        // A known falsehood decides an "and", a known truth an "or".
        ("&&", true, _) if a == 0 => Value::known(0),
        ("&&", _, true) if b == 0 => Value::known(0),
        ("||", true, _) if a != 0 => Value::known(1),
        ("||", _, true) if b != 0 => Value::known(1),
        _ => {
            let sign = sign.bytes().map(u64::from);
            let parts = [left.name, a as u64, right.name, b as u64];
            Value::unknown(&parts.into_iter().chain(sign).collect::<Vec<_>>())
        }
    }
}
