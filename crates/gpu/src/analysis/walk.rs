//! One lane's walk through a kernel's body.

use super::expression::{apply, evaluate, After, Scope, Value};
use super::LaunchNumbers;
use crate::source::lex::TokenKind;
use crate::source::{Definitions, KernelSignature, TokenText};
use std::collections::BTreeMap;
use std::ops::Range;

/// Iterations that a loop is taken to have when data decides: a row of a sparse matrix, a list of
/// neighbours.
const UNKNOWN_TRIPS: f64 = 16.0;
/// Most accesses and statements of a lane that are followed: a hostile source must end.
const MOST_STEPS: u32 = 20_000;

/// Deepest nesting that is followed: each level needs stack.
const MOST_NESTING: usize = 100;

/// An access of a lane.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Access {
    pub array: usize,
    pub site: usize,
    /// The iterations of the loops around it, as a hash.
    pub path: u64,
    pub index: Value,
    pub weight: f64,
    pub write: bool,
    pub atomic: bool,
    pub depth: u32,
    /// How far the index moves in one iteration of the innermost loop.
    pub loop_step: Option<i64>,
}

/// What a lane did.
#[derive(Debug, Default)]
pub(super) struct LaneWalk {
    pub accesses: Vec<Access>,
    pub operations: f64,
    pub iterations: f64,
    pub branches: f64,
    pub data_branches: f64,
    pub loads_after_stores: f64,
}

struct Walker<'a> {
    text: &'a TokenText<'a>,
    arrays: BTreeMap<&'a str, usize>,
    values: BTreeMap<String, Value>,
    out: LaneWalk,
    weight: f64,
    path: u64,
    depth: u32,
    steps: u32,
    stored: bool,
    returned: bool,
}

impl LaneWalk {
    pub fn run(
        source: &str,
        kernel: &KernelSignature,
        launch: &LaunchNumbers,
        defines: &Definitions,
        lane: u32,
    ) -> Self {
        let text = TokenText::new(source);
        let mut values: BTreeMap<String, Value> = BTreeMap::new();
        let [bx, by, bz] = launch.block.map(|b| b.max(1));
        let thread = [lane % bx, lane / bx % by, lane / bx / by % bz];
        for (at, axis) in ["x", "y", "z"].into_iter().enumerate() {
            let mut set = |name: &str, value: u32| {
                values.insert(format!("{name}.{axis}"), Value::known(i64::from(value)))
            };
            set("threadIdx", thread[at]);
            // A block from the middle, so that borders do not count.
            set("blockIdx", launch.grid[at] / 2);
            set("blockDim", launch.block[at]);
            set("gridDim", launch.grid[at]);
        }
        let numbers = defines.iter().chain(&launch.scalars);
        values.extend(numbers.map(|(name, value)| (name.clone(), Value::known(*value))));
        let arrays = kernel.arrays.iter().enumerate();
        let mut walker = Walker {
            text: &text,
            arrays: arrays.map(|(at, a)| (a.name.as_str(), at)).collect(),
            values,
            out: Self::default(),
            weight: 1.0,
            path: 0,
            depth: 0,
            steps: 0,
            stored: false,
            returned: false,
        };
        let body = text.within(&kernel.body);
        if nesting(&text, &body) <= MOST_NESTING {
            walker.block(body);
        }
        walker.out
    }
}

/// Brackets around brackets, and statements in a row that hold others, which nest as well.
fn nesting(text: &TokenText<'_>, body: &Range<usize>) -> usize {
    let (mut depth, mut heads, mut most) = (0_usize, 0_usize, 0_usize);
    // Semicolons within parentheses, those of a loop's head, end no statement.
    let mut head = 0_usize;
    for at in body.clone() {
        match text.text(at) {
            "(" => (depth, head) = (depth + 1, head + 1),
            ")" => (depth, head) = (depth.saturating_sub(1), head.saturating_sub(1)),
            "[" | "{" => depth += 1,
            "]" | "}" => depth = depth.saturating_sub(1),
            "for" | "while" | "if" | "else" => heads += 1,
            ";" if head == 0 => heads = 0,
            _ => {}
        }
        most = most.max(depth).max(heads);
    }
    most
}

impl Scope for Walker<'_> {
    fn value(&self, name: &str) -> Option<Value> {
        self.values.get(name).copied()
    }

    fn array(&self, name: &str) -> Option<usize> {
        self.arrays.get(name).copied()
    }

    fn access(&mut self, array: usize, site: usize, index: Value, after: After) -> Value {
        let atomic = after == After::Address;
        self.note(array, site, index, atomic, atomic);
        Value::unknown(&[9, array as u64, index.name, index.offset as u64])
    }

    fn operation(&mut self) {
        self.out.operations += self.weight;
    }
}

impl Walker<'_> {
    fn note(&mut self, array: usize, site: usize, index: Value, write: bool, atomic: bool) {
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return;
        }
        if self.stored && !write {
            self.out.loads_after_stores += self.weight;
        }
        self.stored |= write;
        self.out.accesses.push(Access {
            array,
            site,
            path: self.path,
            index,
            weight: self.weight,
            write,
            atomic,
            depth: self.depth,
            loop_step: None,
        });
    }

    fn block(&mut self, tokens: Range<usize>) {
        let mut at = tokens.start;
        while at < tokens.end && !self.returned && self.steps <= MOST_STEPS {
            at = self.statement(at, tokens.end);
        }
    }

    /// Walks the statement that begins at `at`; returns where the next begins.
    fn statement(&mut self, at: usize, end: usize) -> usize {
        self.steps += 1;
        match self.text.text(at) {
            ";" => at + 1,
            "{" => {
                let close = self.closing(at, end);
                self.block(at + 1..close);
                close + 1
            }
            "for" => self.for_loop(at, end),
            "while" => self.while_loop(at, end),
            "if" => self.branch(at, end),
            "return" => {
                self.returned = true;
                self.semicolon(at, end) + 1
            }
            "break" | "continue" => self.semicolon(at, end) + 1,
            _ => {
                let semicolon = self.semicolon(at, end);
                self.simple(at..semicolon);
                semicolon + 1
            }
        }
    }

    fn closing(&self, open: usize, end: usize) -> usize {
        self.text.closing(open).unwrap_or(end).min(end)
    }

    /// The semicolon that ends the statement, outside of brackets.
    fn semicolon(&self, mut at: usize, end: usize) -> usize {
        while at < end && self.text.text(at) != ";" {
            at = match self.text.text(at) {
                "(" | "[" | "{" => self.closing(at, end) + 1,
                _ => at + 1,
            };
        }
        at.min(end)
    }

    /// The end of the statement at `at`, without walking it.
    fn skip(&self, at: usize, end: usize) -> usize {
        if at >= end {
            return end;
        }
        match self.text.text(at) {
            "{" => self.closing(at, end) + 1,
            "for" | "while" => self.skip(self.closing(at + 1, end) + 1, end),
            "if" => {
                let then = self.skip(self.closing(at + 1, end) + 1, end);
                if then < end && self.text.text(then) == "else" {
                    return self.skip(then + 1, end);
                }
                then
            }
            _ => (self.semicolon(at, end) + 1).min(end),
        }
    }

    fn branch(&mut self, at: usize, end: usize) -> usize {
        let close = self.closing(at + 1, end);
        let condition = evaluate(self.text, at + 2..close, self);
        let then = (close + 1).min(end);
        let after = self.skip(then, end);
        let otherwise =
            (after < end && self.text.text(after) == "else").then_some((after + 1).min(end));
        let next = otherwise.map_or(after, |at| self.skip(at, end));
        self.out.branches += self.weight;
        if condition.is_known() {
            if condition.offset != 0 {
                self.statement(then, end);
            } else if let Some(otherwise) = otherwise {
                self.statement(otherwise, end);
            }
            return next;
        }
        self.out.data_branches += self.weight;
        let (weight, before) = (self.weight, self.values.clone());
        self.weight = weight / 2.0;
        self.statement(then, end);
        self.returned = false;
        let after_then = std::mem::replace(&mut self.values, before);
        if let Some(otherwise) = otherwise {
            self.statement(otherwise, end);
            self.returned = false;
        }
        // What the two ways disagree on is as unknown as the condition.
        for (name, value) in &mut self.values {
            let other = after_then.get(name).copied().unwrap_or(*value);
            if other != *value {
                let parts = [condition.name, other.name, other.offset as u64, value.name];
                *value = Value::unknown(&parts);
            }
        }
        self.weight = weight;
        next
    }

    fn for_loop(&mut self, at: usize, end: usize) -> usize {
        let close = self.closing(at + 1, end);
        let first = self.semicolon(at + 2, close);
        let second = self.semicolon((first + 1).min(close), close);
        let (condition, step) = ((first + 1).min(close)..second, (second + 1).min(close)..close);
        self.simple(at + 2..first);
        let body = (close + 1).min(end);
        let next = self.skip(body, end);
        let trips = self.trips(&condition, &step);
        self.iterate(trips, condition, step, body, end);
        next
    }

    fn while_loop(&mut self, at: usize, end: usize) -> usize {
        let close = self.closing(at + 1, end);
        let body = (close + 1).min(end);
        let next = self.skip(body, end);
        self.iterate(UNKNOWN_TRIPS, at + 2..close, close..close, body, end);
        next
    }

    /// Iterations by the bound and the step, where both are known.
    fn trips(&self, condition: &Range<usize>, step: &Range<usize>) -> f64 {
        let name = self.text.text(condition.start);
        let sign = self.text.text(condition.start + 1);
        let mut quiet = Quiet { values: &self.values };
        let bound = evaluate(
            self.text,
            (condition.start + 2).min(condition.end)..condition.end,
            &mut quiet,
        );
        let by = step
            .clone()
            .find_map(|at| match self.text.text(at) {
                "++" | "--" => Some(Value::known(1)),
                "+=" | "-=" => Some(evaluate(self.text, at + 1..step.end, &mut quiet)),
                _ => None,
            })
            .unwrap_or_else(|| Value::unknown(&[10]));
        let Some(start) = self.values.get(name) else { return UNKNOWN_TRIPS };
        // Bounds that were loaded together, as the rows of a matrix, have no known distance.
        let known = start.name == bound.name && by.is_known() && by.offset != 0;
        if !known || !(sign.starts_with('<') || sign.starts_with('>')) {
            return UNKNOWN_TRIPS;
        }
        let inclusive = i64::from(sign.ends_with('='));
        let distance = bound.offset.saturating_sub(start.offset).saturating_abs() + inclusive;
        (distance as f64 / by.offset.unsigned_abs() as f64).ceil()
    }

    fn iterate(
        &mut self,
        trips: f64,
        condition: Range<usize>,
        step: Range<usize>,
        body: usize,
        end: usize,
    ) {
        evaluate(self.text, condition.clone(), self);
        if trips < 1.0 {
            return;
        }
        let (weight, path) = (self.weight, self.path);
        let rounds = if trips < 2.0 { 1 } else { 2 };
        self.out.iterations += weight * trips;
        self.weight = weight * trips / f64::from(rounds);
        self.depth += 1;
        let mut starts = [self.out.accesses.len(); 3];
        for round in 0..rounds {
            self.path = path.wrapping_mul(31).wrapping_add(round as u64 + 1);
            self.statement(body, end);
            self.simple(step.clone());
            if round == 0 {
                evaluate(self.text, condition.clone(), self);
            }
            starts[round as usize + 1] = self.out.accesses.len();
        }
        if rounds == 2 {
            self.mark_steps(starts);
        }
        self.depth -= 1;
        (self.weight, self.path) = (weight, path);
    }

    /// Compares the accesses of two iterations, unless an inner loop has done so.
    fn mark_steps(&mut self, [start, middle, end]: [usize; 3]) {
        for first in start..middle {
            let one = self.out.accesses[first].clone();
            let again = (middle..end).find(|at| self.out.accesses[*at].site == one.site);
            let Some(second) = again.filter(|_| one.depth == self.depth) else { continue };
            let other = self.out.accesses[second].index;
            let step =
                (other.name == one.index.name).then(|| other.offset.wrapping_sub(one.index.offset));
            self.out.accesses[first].loop_step = step;
            self.out.accesses[second].loop_step = step;
        }
    }

    /// A declaration, an assignment or a call.
    fn simple(&mut self, tokens: Range<usize>) {
        let sign = self.assignment(&tokens);
        let Some(sign) = sign else {
            for part in self.parts(&tokens) {
                self.step_or_call(part);
            }
            return;
        };
        let kind = self.text.text(sign).to_owned();
        let right = evaluate(self.text, (sign + 1).min(tokens.end)..tokens.end, self);
        let target = tokens.start..sign;
        let array = target.clone().find(|at| {
            self.text.text(at + 1) == "[" && self.arrays.contains_key(self.text.text(*at))
        });
        if let Some(site) = array {
            let close = self.closing(site + 1, sign);
            let index = evaluate(self.text, site + 2..close, self);
            let array = self.arrays[self.text.text(site)];
            if kind != "=" {
                self.note(array, site, index, false, false);
            }
            self.note(array, site, index, true, false);
            return;
        }
        let word = |at: &usize| self.text.tokens[*at].kind == TokenKind::Word;
        let member = target.clone().any(|at| matches!(self.text.text(at), "." | "["));
        let Some(name) = target.clone().rfind(word) else { return };
        let name = self.text.text(name).to_owned();
        if member {
            return;
        }
        let value = match kind.as_str() {
            "=" => right,
            _ => {
                let before = self.values.get(&name).copied();
                let before = before.unwrap_or_else(|| Value::unknown(&[11]));
                self.operation();
                apply(kind.trim_end_matches('='), before, right)
            }
        };
        self.values.insert(name, value);
    }

    fn assignment(&self, tokens: &Range<usize>) -> Option<usize> {
        let mut at = tokens.start;
        while at < tokens.end {
            match self.text.text(at) {
                "=" | "+=" | "-=" | "*=" | "/=" | "%=" | "&=" | "|=" | "^=" | "<<=" | ">>=" => {
                    return Some(at)
                }
                "(" | "[" | "{" => at = self.closing(at, tokens.end) + 1,
                _ => at += 1,
            }
        }
        None
    }

    fn parts(&self, tokens: &Range<usize>) -> Vec<Range<usize>> {
        let mut parts = Vec::new();
        let (mut at, mut start) = (tokens.start, tokens.start);
        while at < tokens.end {
            match self.text.text(at) {
                "," => {
                    parts.push(start..at);
                    start = at + 1;
                    at += 1;
                }
                "(" | "[" | "{" => at = self.closing(at, tokens.end) + 1,
                _ => at += 1,
            }
        }
        parts.push(start..tokens.end.max(start));
        parts
    }

    fn step_or_call(&mut self, tokens: Range<usize>) {
        let step = tokens.clone().find(|at| matches!(self.text.text(*at), "++" | "--"));
        if let (Some(step), true) = (step, tokens.len() == 2) {
            let name = self.text.text(if step == tokens.start { step + 1 } else { tokens.start });
            let by = Value::known(if self.text.text(step) == "++" { 1 } else { -1 });
            if let Some(value) = self.values.get(name).copied() {
                let value = apply("+", value, by);
                self.values.insert(name.to_owned(), value);
            }
            return;
        }
        if !tokens.is_empty() {
            evaluate(self.text, tokens, self);
        }
    }
}

/// Evaluates without leaving a trace.
struct Quiet<'a> {
    values: &'a BTreeMap<String, Value>,
}

impl Scope for Quiet<'_> {
    fn value(&self, name: &str) -> Option<Value> {
        self.values.get(name).copied()
    }
    fn array(&self, _name: &str) -> Option<usize> {
        None
    }
    fn access(&mut self, _array: usize, _site: usize, _index: Value, _after: After) -> Value {
        Value::unknown(&[12])
    }
    fn operation(&mut self) {}
}
