//! Adds or replaces a far store in the text of a machine file; everything else stays as it is.

use super::write::far;
use crate::error::MachineError;
use crate::model::Machine;
use crate::store::FarStore;

/// The machine file `text` with `store` in it: a section at its end, instead of the one that has
/// the store's name if there is one. Comments, spreads and the order of the rest stay. `name`
/// stands in messages.
///
/// # Errors
/// `text` is no machine file; the store's name or figures are refused; or the file has the store in
/// a form that cannot be cut out of it ([`MachineError::InTheWay`]).
pub fn with_store(text: &str, name: &str, store: &FarStore) -> Result<String, MachineError> {
    let mut expected = Machine::from_toml(text, name)?;
    expected.far.retain(|s| s.name != store.name);
    expected.far.push(store.clone());
    expected
        .check()
        .map_err(|problem| MachineError::Inconsistent { name: name.to_owned(), problem })?;
    let mut out = String::new();
    for section in sections(text).filter(|s| !is_store(s, &store.name)) {
        out.push_str(section);
    }
    while out.ends_with("\n\n") {
        out.pop();
    }
    if !out.is_empty() && !out.ends_with('\n') {
        out.push('\n');
    }
    far(&mut out, store);
    // What was cut and pasted is judged by what it says.
    match Machine::from_toml(&out, name) {
        Ok(machine) if machine == expected => Ok(out),
        _ => Err(MachineError::InTheWay { file: name.to_owned(), store: store.name.clone() }),
    }
}

/// The text in pieces that begin with a line `[...`, but for the first.
fn sections(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest.match_indices("\n[").map(|(at, _)| at + 1).next().unwrap_or(rest.len());
        let (section, after) = rest.split_at(end);
        rest = after;
        Some(section)
    })
}

fn is_store(section: &str, name: &str) -> bool {
    let mut lines = section.lines();
    let far = lines.next().is_some_and(|l| l.split('#').next().unwrap_or("").trim() == "[[far]]");
    let named = |line: &str| {
        let value = line.trim().strip_prefix("name").and_then(|l| l.trim_start().strip_prefix('='));
        // Names of stores hold no quotes and no `#`.
        value.is_some_and(|v| {
            v.split('#').next().unwrap_or("").trim().trim_matches(['"', '\'']) == name
        })
    };
    far && lines.any(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset_text;
    use terrace_types::Nanos;

    fn store(name: &str, us: u64) -> FarStore {
        let [usual, _] = FarStore::usual();
        FarStore { name: name.to_owned(), read_latency: Nanos::micros(us), ..usual }
    }

    #[test]
    fn a_store_is_added_and_then_replaced_and_comments_stay() {
        let text = preset_text("lab-cxl").unwrap();
        let one = with_store(text, "m", &store("file", 50)).unwrap();
        assert!(one.starts_with(text.trim_end()));
        let two = with_store(&one, "m", &store("nvme", 60)).unwrap();
        let three = with_store(&two, "m", &store("file", 70)).unwrap();
        let far = Machine::from_toml(&three, "m").unwrap().far;
        assert_eq!(far, [store("nvme", 60), store("file", 70)]);
        assert!(three.starts_with(text.trim_end()) && !three.contains("read_latency_us = 50"));
        assert_eq!(
            with_store(&three, "m", &store("file", 70)).unwrap(),
            three,
            "a second time changes nothing"
        );
    }

    #[test]
    fn hand_written_sections_are_found_or_refused() {
        let text = preset_text("lab-cxl").unwrap();
        let own = format!(
            "{text}\n[[far]]  # mine\nfault_us = 3\n  name = 'file' # of \
                course\n\n[[far]]\nname = \"b\""
        );
        let out = with_store(&own, "m", &store("file", 1)).unwrap();
        assert!(!out.contains("mine") && out.contains("name = \"b\"\n"), "{out}");
        let inline = format!("far = [{{ name = \"file\" }}]\n{text}");
        let error = with_store(&inline, "m.toml", &store("file", 1)).unwrap_err();
        assert!(matches!(error, MachineError::InTheWay { .. }), "{error}");
        assert!(
            error.to_string().contains("m.toml") && error.to_string().contains("file"),
            "{error}"
        );
        let error = with_store(text, "m", &store("a/b", 1)).unwrap_err();
        assert!(error.to_string().contains("up to 32 letters"), "{error}");
        assert!(matches!(with_store("[[[", "m", &store("a", 1)), Err(MachineError::Syntax { .. })));
    }
}
