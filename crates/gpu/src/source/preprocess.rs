//! The part of the preprocessor that a reader of kernels needs: conditions and plain definitions.
//!
//! Lines that a condition excludes become empty, so that line numbers stay.

use std::collections::BTreeMap;

/// Definitions by name; a name defined without a value has the value 1.
pub type Definitions = BTreeMap<String, i64>;

/// Condition of a nested block: whether the lines hold, and whether a branch held before.
#[derive(Clone, Copy)]
struct Branch {
    active: bool,
    taken: bool,
    outer: bool,
}

/// The source as it is under these definitions, and the definitions that it makes itself.
#[must_use]
pub fn preprocess(source: &str, defined: &Definitions) -> (String, Definitions) {
    let mut definitions = defined.clone();
    let mut stack: Vec<Branch> = Vec::new();
    let mut out = String::with_capacity(source.len());
    for line in source.lines() {
        let active = stack.last().is_none_or(|b| b.active);
        let trimmed = line.trim_start();
        if let Some(directive) = trimmed.strip_prefix('#') {
            let directive = directive.trim_start();
            let word_end =
                directive.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(directive.len());
            let (word, rest) = directive.split_at(word_end);
            step(word, rest.trim(), active, &mut stack, &mut definitions);
        } else if active {
            out.push_str(line);
        }
        out.push('\n');
    }
    (out, definitions)
}

fn step(
    word: &str,
    rest: &str,
    active: bool,
    stack: &mut Vec<Branch>,
    definitions: &mut Definitions,
) {
    let open = |holds: bool| Branch { active: active && holds, taken: holds, outer: active };
    match word {
        "ifdef" => stack.push(open(definitions.contains_key(first_word(rest)))),
        "ifndef" => stack.push(open(!definitions.contains_key(first_word(rest)))),
        "if" => stack.push(open(condition(rest, definitions))),
        "elif" => {
            if let Some(branch) = stack.last_mut() {
                let holds = !branch.taken && condition(rest, definitions);
                branch.active = branch.outer && holds;
                branch.taken |= holds;
            }
        }
        "else" => {
            if let Some(branch) = stack.last_mut() {
                branch.active = branch.outer && !branch.taken;
                branch.taken = true;
            }
        }
        "endif" => {
            stack.pop();
        }
        "define" if active => {
            let name = first_word(rest);
            let value = rest[name.len()..].trim();
            let value = if value.is_empty() { Some(1) } else { value.parse().ok() };
            if let Some(value) = value.filter(|_| !name.is_empty()) {
                definitions.insert(name.to_owned(), value);
            }
        }
        "undef" if active => {
            definitions.remove(first_word(rest));
        }
        _ => {}
    }
}

fn first_word(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    &text[..end]
}

/// `defined(A) || defined(B) && !defined(C)`, names and numbers; what is unknown does not hold.
fn condition(text: &str, definitions: &Definitions) -> bool {
    text.split("||").any(|any| {
        any.split("&&").all(|term| {
            let term = term.trim();
            let (negated, term) = match term.strip_prefix('!') {
                Some(rest) => (true, rest.trim()),
                None => (false, term),
            };
            let holds = match term.strip_prefix("defined") {
                Some(name) => {
                    let name = name.trim().trim_start_matches('(').trim_end_matches(')').trim();
                    definitions.contains_key(name)
                }
                None => {
                    let value = definitions.get(term).copied().or_else(|| term.parse().ok());
                    value.unwrap_or(0) != 0
                }
            };
            holds != negated
        })
    })
}
