//! Stack files: TOML to a design, with errors that name file, line, key, value and range.
//!
//! A stack file has tables `stack`, `interface`, `bond`, `tsv`, `timing`, `refresh`, `supply`,
//! `package` and `published`. What it does not give has the value of the paper's HBM2 stack, of its
//! `generation` or of its `bonding`.

use super::design::StackDesign;
use super::error::StackError;
use super::fields::{NameField, NumberField, PublishedField, NAMES, NUMBERS, PUBLISHED};
use toml::de::{DeTable, DeValue};
use toml::Spanned;

/// Tables of a stack file.
const TABLES: [&str; 9] =
    ["stack", "interface", "bond", "tsv", "timing", "refresh", "supply", "package", "published"];
/// Longest text repeated in a message.
const LONGEST: usize = 60;

/// Reads a stack file; `name` stands in messages and is the design's name where it gives none.
///
/// # Errors
/// [`StackError`]: the first thing that is wrong.
pub fn read(text: &str, name: &str) -> Result<StackDesign, StackError> {
    let parsed = DeTable::parse(text).map_err(|e| StackError::Syntax {
        file: name.to_owned(),
        line: line_of(text, e.span().map_or(0, |s| s.start)),
        why: shorten(e.message()),
    })?;
    let reader = Reader { text, name };
    let top = parsed.get_ref();
    reader.check_keys(top)?;
    let mut design = StackDesign::reference(stem(name));
    if let Some(value) = top.get("name") {
        let DeValue::String(text) = value.get_ref() else {
            return Err(reader.value("name", value, "a string in quotes"));
        };
        design.name = shorten(text);
    }
    for field in NAMES {
        if let Some(value) = reader.find(top, field.table, field.key) {
            reader.choose(&mut design, field, value)?;
        }
    }
    for field in NUMBERS {
        match reader.find(top, field.table, field.key) {
            Some(value) => reader.set(&mut design, field, value)?,
            None if field.required => {
                return Err(StackError::Missing {
                    file: name.to_owned(),
                    key: format!("{}.{}", field.table, field.key),
                    accepted: field.accepted(),
                });
            }
            None => {}
        }
    }
    for PublishedField { key, at } in PUBLISHED {
        if let Some(value) = reader.find(top, "published", key) {
            let number = number(value.get_ref()).filter(|n| *n > 0.0 && *n < 1e9);
            let number =
                number.ok_or_else(|| reader.value(key, value, "a number above 0 and below 1e9"))?;
            *at(&mut design) = Some(number);
        }
    }
    check(&design).map_err(|error| match error {
        StackError::Impossible { what, remedy, .. } => {
            StackError::Impossible { design: name.to_owned(), what, remedy }
        }
        other => other,
    })?;
    Ok(design)
}

/// Whether the parts of a design can be together.
///
/// # Errors
/// [`StackError::Impossible`] with the first contradiction.
pub fn check(design: &StackDesign) -> Result<(), StackError> {
    let bad = |what: String, remedy: &str| {
        Err(StackError::Impossible { design: design.name.clone(), what, remedy: remedy.to_owned() })
    };
    let (g, i, b, t) = (&design.geometry, &design.interface, &design.bond, &design.tsv);
    let ranks = design.ranks();
    if ranks.fract() != 0.0 || ranks < 1.0 {
        let what = format!(
            "{} dies of {} channels each do not make whole sets of {} channels",
            g.dies, i.channels_per_die, i.channels
        );
        return bad(what, "change stack.dies, interface.channels_per_die or interface.channels");
    }
    if ranks > 1.0 && t.structure == super::design::TsvStructure::PointToPoint {
        let what = format!("{ranks} dies share each channel, but the vias are point-to-point");
        return bad(what, "set tsv.structure = \"shared\" or \"shared-channel\"");
    }
    if b.bump_um >= b.bump_pitch_um {
        let what = format!("bumps of {} um do not fit a pitch of {}", b.bump_um, b.bump_pitch_um);
        return bad(what, "change bond.bump_um or bond.bump_pitch_um");
    }
    if b.bump_field_mm2 > design.die_mm2() {
        let what =
            format!("bond.bump_field_mm2 = {} on {:.1} mm2", b.bump_field_mm2, design.die_mm2());
        return bad(what, "give less than the die's area");
    }
    if i.banks < i.bank_groups || i.banks % i.bank_groups != 0.0 {
        let what = format!("{} banks in {} bank groups", i.banks, i.bank_groups);
        return bad(what, "let interface.banks be a multiple of interface.bank_groups");
    }
    if i.channel_bits % (8.0 * i.pseudo_channels) != 0.0 {
        let what = format!("{} bits in {} pseudo-channels", i.channel_bits, i.pseudo_channels);
        return bad(what, "let each pseudo-channel have whole bytes");
    }
    if i.channel_bits / i.pseudo_channels * i.burst / 8.0 > i.row_bytes {
        return bad(
            format!("a burst is longer than interface.row_bytes = {}", i.row_bytes),
            "give longer rows",
        );
    }
    if design.supply.vdd_minimum_v >= design.supply.vdd_v {
        let s = &design.supply;
        let what = format!("supply.vdd_minimum_v = {} with vdd_v = {}", s.vdd_minimum_v, s.vdd_v);
        return bad(what, "give less than supply.vdd_v");
    }
    if design.refresh.rfc_ns >= design.refresh.refi_ns {
        let r = &design.refresh;
        let what = format!("refresh.rfc_ns = {} with refi_ns = {}", r.rfc_ns, r.refi_ns);
        return bad(what, "let a refresh take less time than there is between two");
    }
    let used = super::tsv::area_share(design);
    if used >= 0.5 {
        let what = format!("vias and keep-out zones take {:.0}% of the die", used * 100.0);
        return bad(what, "have fewer or thinner vias, or a larger die");
    }
    Ok(())
}

struct Reader<'a> {
    text: &'a str,
    name: &'a str,
}

impl<'a> Reader<'a> {
    fn check_keys(&self, top: &DeTable<'_>) -> Result<(), StackError> {
        let at_top = |key: &str| {
            TABLES.contains(&key)
                || key == "name"
                || NAMES.iter().any(|f| f.table.is_empty() && f.key == key)
        };
        for (key, value) in top.iter() {
            let table = key.get_ref().as_ref();
            if !at_top(table) {
                let mut known: Vec<&str> = vec!["name"];
                known.extend(NAMES.iter().filter(|f| f.table.is_empty()).map(|f| f.key));
                known.extend(TABLES);
                return Err(self.unknown(key.span().start, table, &known));
            }
            let DeValue::Table(inner) = value.get_ref() else {
                if TABLES.contains(&table) {
                    return Err(self.value(table, value, &format!("a table, [{table}]")));
                }
                continue;
            };
            let known = keys_of(table);
            for (key, _) in inner.iter() {
                if !known.contains(&key.get_ref().as_ref()) {
                    let full = format!("{table}.{}", key.get_ref());
                    return Err(self.unknown(key.span().start, &full, &known));
                }
            }
        }
        Ok(())
    }

    fn find<'t, 'i>(
        &self,
        top: &'t DeTable<'i>,
        table: &str,
        key: &str,
    ) -> Option<&'t Spanned<DeValue<'i>>> {
        if table.is_empty() {
            return top.get(key);
        }
        match top.get(table)?.get_ref() {
            DeValue::Table(inner) => inner.get(key),
            _ => None,
        }
    }

    fn choose(
        &self,
        design: &mut StackDesign,
        field: &NameField,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(), StackError> {
        let names = (field.names)();
        let index = match value.get_ref() {
            DeValue::String(text) => names.iter().position(|n| *n == text.as_ref()),
            _ => None,
        };
        let accepted = || format!("one of \"{}\"", names.join("\", \""));
        let index =
            index.ok_or_else(|| self.value(&full(field.table, field.key), value, &accepted()))?;
        (field.set)(design, index);
        Ok(())
    }

    fn set(
        &self,
        design: &mut StackDesign,
        field: &NumberField,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(), StackError> {
        let found = number(value.get_ref()).filter(|n| field.accepts(*n));
        let found = found
            .ok_or_else(|| self.value(&full(field.table, field.key), value, &field.accepted()))?;
        // In files all is given at once: the number of channels does not follow the dies.
        *(field.at)(design) = found;
        Ok(())
    }

    fn unknown(&self, offset: usize, key: &str, known: &[&str]) -> StackError {
        StackError::UnknownKey {
            file: self.name.to_owned(),
            line: line_of(self.text, offset),
            key: shorten(key),
            known: known.join(", "),
        }
    }

    fn value(&self, key: &str, value: &Spanned<DeValue<'_>>, accepted: &str) -> StackError {
        StackError::Value {
            file: self.name.to_owned(),
            line: line_of(self.text, value.span().start),
            key: key.to_owned(),
            found: shorten(self.text.get(value.span()).unwrap_or("?")),
            accepted: accepted.to_owned(),
        }
    }
}

fn full(table: &str, key: &str) -> String {
    if table.is_empty() {
        return key.to_owned();
    }
    format!("{table}.{key}")
}

fn keys_of(table: &str) -> Vec<&'static str> {
    if table == "published" {
        return PUBLISHED.iter().map(|p| p.key).collect();
    }
    let names = NAMES.iter().filter(|f| f.table == table).map(|f| f.key);
    names.chain(NUMBERS.iter().filter(|f| f.table == table).map(|f| f.key)).collect()
}

fn number(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Integer(i) if i.radix() == 10 => i.as_str().replace('_', "").parse().ok(),
        DeValue::Float(f) => f.as_str().replace('_', "").parse().ok(),
        _ => None,
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|b| *b == b'\n').count() + 1
}

fn stem(name: &str) -> &str {
    let file = name.rsplit('/').next().unwrap_or(name);
    file.strip_suffix(".toml").unwrap_or(file)
}

/// One line of bounded length without control characters.
fn shorten(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut out: String = text.chars().map(clean).take(LONGEST).collect();
    if text.chars().nth(LONGEST).is_some() {
        out.push_str("...");
    }
    out
}
