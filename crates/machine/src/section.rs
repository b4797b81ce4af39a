//! One table of a machine file, with errors that name file, line and key.

use crate::error::{shorten, MachineError, TextPosition};
use crate::figure::{Evidence, Figure};
use crate::quantity::{parse_bytes, parse_rate};
use std::ops::RangeInclusive;
use terrace_types::{Bytes, BytesPerSec, Nanos};
use toml::de::{DeTable, DeValue};
use toml::Spanned;

/// The whole file: its name and where its lines begin.
pub(crate) struct Source<'s> {
    name: &'s str,
    line_starts: Vec<usize>,
}

impl<'s> Source<'s> {
    pub(crate) fn new(name: &'s str, text: &str) -> Self {
        let newlines = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(at, _)| at + 1);
        Self { name, line_starts: std::iter::once(0).chain(newlines).collect() }
    }

    pub(crate) fn place(&self, offset: usize) -> TextPosition {
        let line = self.line_starts.partition_point(|start| *start <= offset);
        TextPosition { file: self.name.to_owned(), line }
    }
}

/// One table.
pub(crate) struct Section<'a, 'i> {
    source: &'a Source<'a>,
    table: &'a DeTable<'i>,
    /// Name in messages, with a final dot; empty for the top.
    path: String,
    start: usize,
}

impl<'a, 'i> Section<'a, 'i> {
    /// A table, all of whose keys are among `known`.
    pub(crate) fn new(
        source: &'a Source<'a>,
        table: &'a DeTable<'i>,
        path: &str,
        start: usize,
        known: &[&str],
    ) -> Result<Self, MachineError> {
        for (key, _) in table.iter() {
            if !known.contains(&key.get_ref().as_ref()) {
                return Err(MachineError::UnknownKey {
                    place: source.place(key.span().start),
                    key: shorten(&format!("{path}{}", key.get_ref())),
                    known: known.join(", "),
                });
            }
        }
        Ok(Self { source, table, path: path.to_owned(), start })
    }

    fn get(&self, key: &str) -> Option<&'a Spanned<DeValue<'i>>> {
        self.table.get(key)
    }

    pub(crate) fn missing(&self, key: &str, example: &'static str) -> MachineError {
        let place = self.source.place(self.start);
        MachineError::MissingKey { place, key: format!("{}{key}", self.path), example }
    }

    pub(crate) fn bad(
        &self,
        key: &str,
        value: &Spanned<DeValue<'i>>,
        expected: impl Into<String>,
    ) -> MachineError {
        MachineError::BadValue {
            place: self.source.place(value.span().start),
            key: format!("{}{key}", self.path),
            found: describe(value.get_ref()),
            expected: expected.into(),
        }
    }

    /// As [`Self::bad`], for a string already taken.
    pub(crate) fn bad_string(&self, key: &str, found: &str, expected: &str) -> MachineError {
        let offset = self.get(key).map_or(self.start, |value| value.span().start);
        MachineError::BadValue {
            place: self.source.place(offset),
            key: format!("{}{key}", self.path),
            found: format!("\"{}\"", shorten(found)),
            expected: expected.to_owned(),
        }
    }

    /// A sub-table.
    pub(crate) fn section(
        &self,
        key: &str,
        known: &[&str],
    ) -> Result<Option<Section<'a, 'i>>, MachineError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let DeValue::Table(table) = value.get_ref() else {
            return Err(self.bad(key, value, format!("a table, [{key}]")));
        };
        Section::new(self.source, table, &format!("{key}."), value.span().start, known).map(Some)
    }

    /// An array of `most` tables at most.
    pub(crate) fn sections(
        &self,
        key: &str,
        known: &[&str],
        most: usize,
    ) -> Result<Vec<Section<'a, 'i>>, MachineError> {
        let Some(value) = self.get(key) else {
            return Ok(Vec::new());
        };
        let DeValue::Array(items) = value.get_ref() else {
            return Err(self.bad(key, value, format!("tables headed [[{key}]]")));
        };
        // Before anything is made of them: a few bytes of a node can name thousands of CPUs.
        if let Some(item) = items.get(most) {
            return Err(self.bad(key, item, format!("at most {most} of them")));
        }
        items
            .iter()
            .map(|item| match item.get_ref() {
                DeValue::Table(table) => {
                    let path = format!("{key}.");
                    Section::new(self.source, table, &path, item.span().start, known)
                }
                _ => Err(self.bad(key, item, format!("tables headed [[{key}]]"))),
            })
            .collect()
    }

    pub(crate) fn string(&self, key: &str) -> Result<Option<&'a str>, MachineError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.get_ref() {
            DeValue::String(text) => Ok(Some(text.as_ref())),
            _ => Err(self.bad(key, value, "a string in quotes")),
        }
    }

    pub(crate) fn strings(&self, key: &str) -> Result<Vec<String>, MachineError> {
        let Some(value) = self.get(key) else {
            return Ok(Vec::new());
        };
        let expected = "a list of strings in quotes";
        let DeValue::Array(items) = value.get_ref() else {
            return Err(self.bad(key, value, expected));
        };
        items
            .iter()
            .map(|item| match item.get_ref() {
                DeValue::String(text) => Ok(text.clone().into_owned()),
                _ => Err(self.bad(key, item, expected)),
            })
            .collect()
    }

    pub(crate) fn boolean(&self, key: &str) -> Result<Option<bool>, MachineError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.get_ref() {
            DeValue::Boolean(flag) => Ok(Some(*flag)),
            _ => Err(self.bad(key, value, "true or false")),
        }
    }

    pub(crate) fn integer(
        &self,
        key: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, MachineError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match whole(value.get_ref()).filter(|n| range.contains(n)) {
            Some(number) => Ok(Some(number)),
            None => {
                let expected = format!("a whole number from {} to {}", range.start(), range.end());
                Err(self.bad(key, value, expected))
            }
        }
    }

    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, MachineError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match decimal(value.get_ref()).filter(|x| x.is_finite() && *x >= 0.0) {
            Some(number) => Ok(Some(number)),
            None => Err(self.bad(key, value, "a number, not negative")),
        }
    }

    /// A span of `key` nanoseconds as whole picoseconds, of which there are `most` at most.
    pub(crate) fn picos(&self, key: &str, most: f64) -> Result<Option<u64>, MachineError> {
        let Some(ps) = self.number(key)?.map(|ns| (ns * 1000.0).round()) else { return Ok(None) };
        match self.get(key).filter(|_| ps > most) {
            Some(value) => Err(self.bad(key, value, format!("at most {} ns", most / 1000.0))),
            None => Ok(Some(ps as u64)),
        }
    }

    /// A list of at most `many` numbers, none negative or above `most`; empty where not given.
    pub(crate) fn numbers(
        &self,
        key: &str,
        many: usize,
        most: f64,
    ) -> Result<Vec<f64>, MachineError> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let expected = || format!("a list of at most {many} numbers from 0 to {most}");
        let DeValue::Array(items) = value.get_ref() else {
            return Err(self.bad(key, value, expected()));
        };
        if let Some(item) = items.get(many) {
            return Err(self.bad(key, item, expected()));
        }
        let number = |item: &Spanned<DeValue<'i>>| {
            decimal(item.get_ref())
                .filter(|x| (0.0..=most).contains(x))
                .ok_or_else(|| self.bad(key, item, expected()))
        };
        items.iter().map(number).collect()
    }

    pub(crate) fn bytes(&self, key: &str) -> Result<Option<Bytes>, MachineError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let parsed = match value.get_ref() {
            DeValue::String(text) => parse_bytes(text),
            _ => None,
        };
        parsed.map(Some).ok_or_else(|| {
            self.bad(key, value, "a size with its unit in quotes, such as \"192 MiB\"")
        })
    }

    /// A span of time, from `NAME_ns` or `NAME_us`.
    pub(crate) fn span(&self, name: &str) -> Result<Option<Nanos>, MachineError> {
        let (ns_key, us_key) = (format!("{name}_ns"), format!("{name}_us"));
        let (key, scale) = match (self.get(&ns_key), self.get(&us_key)) {
            (None, None) => return Ok(None),
            (Some(_), None) => (ns_key, 1.0),
            (None, Some(_)) => (us_key, 1_000.0),
            (Some(value), Some(_)) => {
                return Err(self.both(value, &ns_key, &us_key));
            }
        };
        // Exact up to 2^53 ns, 104 days; more is refused when the machine is checked.
        Ok(self.number(&key)?.map(|n| Nanos((n * scale).round() as u64)))
    }

    pub(crate) fn cpus(&self, key: &str) -> Result<Option<Vec<u32>>, MachineError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let bad = |at| self.bad(key, at, "CPU numbers up to 8191: [0, 1, 2] or \"0-2\"");
        match value.get_ref() {
            DeValue::String(text) => {
                crate::lists::parse_list(text, 8191).map(Some).map_err(|_| bad(value))
            }
            DeValue::Array(items) => items
                .iter()
                .map(|item| {
                    whole(item.get_ref())
                        .and_then(|n| u32::try_from(n).ok())
                        .ok_or_else(|| bad(item))
                })
                .collect::<Result<_, _>>()
                .map(Some),
            _ => Err(bad(value)),
        }
    }

    pub(crate) fn evidence(&self, key: &str) -> Result<Option<Evidence>, MachineError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let DeValue::String(text) = value.get_ref() else {
            return Err(self.bad(key, value, EVIDENCE));
        };
        Evidence::from_name(text).map(Some).ok_or_else(|| self.bad(key, value, EVIDENCE))
    }

    /// A latency: a number of ns, or `{ value = 80, evidence = "measured", spread = 2 }`.
    pub(crate) fn latency(
        &self,
        key: &str,
        evidence: Evidence,
    ) -> Result<Option<Figure<Nanos>>, MachineError> {
        self.figure(key, evidence, |section, key| {
            Ok(section.number(key)?.map(|ns| Nanos(ns.round() as u64)))
        })
    }

    /// A throughput: `"20 GB/s"`, or a table of value, evidence and spread.
    pub(crate) fn rate(
        &self,
        key: &str,
        evidence: Evidence,
    ) -> Result<Option<Figure<BytesPerSec>>, MachineError> {
        self.figure(key, evidence, |section, key| {
            let Some(value) = section.get(key) else {
                return Ok(None);
            };
            let parsed = match value.get_ref() {
                DeValue::String(text) => parse_rate(text),
                _ => None,
            };
            parsed.map(Some).ok_or_else(|| {
                section.bad(key, value, "a rate with its unit in quotes, such as \"20 GB/s\"")
            })
        })
    }

    fn figure<T>(
        &self,
        key: &str,
        evidence: Evidence,
        read: impl Fn(&Self, &str) -> Result<Option<T>, MachineError>,
    ) -> Result<Option<Figure<T>>, MachineError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        if !matches!(value.get_ref(), DeValue::Table(_)) {
            return Ok(read(self, key)?.map(|value| Figure { value, evidence }));
        }
        let known = ["value", "evidence", "spread"];
        let Some(inner) = self.section(key, &known)? else {
            return Ok(None);
        };
        if inner.get("spread").is_some_and(|s| matches!(s.get_ref(), DeValue::String(_))) {
            inner.string("spread")?;
        } else {
            inner.number("spread")?;
        }
        let evidence = inner.evidence("evidence")?.unwrap_or(evidence);
        match read(&inner, "value")? {
            Some(value) => Ok(Some(Figure { value, evidence })),
            None => Err(inner.missing("value", "`value = ...`")),
        }
    }

    /// The two keys that say a figure's read or write side, or both sides at once.
    pub(crate) fn exclusive(&self, both: &str, sides: [&str; 2]) -> Result<(), MachineError> {
        for side in sides {
            if let (Some(value), Some(_)) = (self.get(both), self.get(side)) {
                return Err(self.both(value, both, side));
            }
        }
        Ok(())
    }

    fn both(&self, value: &Spanned<DeValue<'i>>, key: &str, other: &str) -> MachineError {
        MachineError::BothGiven {
            place: self.source.place(value.span().start),
            key: format!("{}{key}", self.path),
            other: other.to_owned(),
        }
    }
}

const EVIDENCE: &str = "one of hmat, measured, config, preset, distance, unknown";

fn whole(value: &DeValue<'_>) -> Option<u64> {
    match value {
        DeValue::Integer(n) => u64::from_str_radix(n.as_str(), n.radix()).ok(),
        _ => None,
    }
}

fn decimal(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Integer(_) => whole(value).map(|n| n as f64),
        DeValue::Float(x) => x.as_str().parse().ok(),
        _ => None,
    }
}

fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("\"{}\"", shorten(text)),
        DeValue::Integer(n) => shorten(n.as_str()),
        DeValue::Float(x) => shorten(x.as_str()),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}
