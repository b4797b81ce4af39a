//! Many designs: the values of keys, their product, and the designs that no other beats.

use super::design::StackDesign;
use super::error::StackError;
use super::evaluate::StackEvaluation;
use super::fields::{NAMES, NUMBERS};
use super::file;

/// Designs of a sweep at most.
const MAX_DESIGNS: usize = 10_000;
/// Step of a range of dies that gives none: dies come in fours.
const DIES_STEP: f64 = 4.0;

/// One key and the values to try.
#[derive(Debug, Clone, PartialEq)]
pub struct SweptKey {
    /// Its name.
    pub key: String,
    /// Values, as in a stack file without quotes.
    pub values: Vec<String>,
}

/// Reads `dies=4..24` (in steps of four; other keys double), `dies=4..24:2` or a list,
/// `bonding=microbump,hybrid`.
///
/// # Errors
/// [`StackError::Sweep`]: what would do.
pub fn parse(text: &str) -> Result<SweptKey, StackError> {
    let bad = |why: String| StackError::Sweep { text: text.chars().take(60).collect(), why };
    let (key, values) = text
        .split_once('=')
        .ok_or_else(|| bad("give KEY=FROM..TO, KEY=FROM..TO:STEP or KEY=VALUE,VALUE".to_owned()))?;
    if let Some(field) = NAMES.iter().find(|f| f.key == key) {
        let names = (field.names)();
        let values: Vec<String> = values.split(',').map(|v| v.trim().to_owned()).collect();
        if let Some(unknown) = values.iter().find(|v| !names.contains(&v.as_str())) {
            return Err(bad(format!("no {key} {unknown:?}; give some of {}", names.join(", "))));
        }
        return Ok(SweptKey { key: key.to_owned(), values });
    }
    let field = NUMBERS.iter().find(|f| f.key == key).ok_or_else(|| {
        let known: Vec<&str> =
            NAMES.iter().map(|f| f.key).chain(NUMBERS.iter().map(|f| f.key)).collect();
        bad(format!("no key {key:?}; known: {}", known.join(", ")))
    })?;
    let number = |t: &str| {
        let number = t.trim().parse::<f64>().ok().filter(|n| field.accepts(*n));
        number.ok_or_else(|| bad(format!("give {}", field.accepted())))
    };
    let numbers = match values.split_once("..") {
        Some((from, rest)) => {
            let (to, step) = match rest.split_once(':') {
                Some((to, step)) => {
                    (to, Some(step.trim().parse::<f64>().map_err(|e| bad(e.to_string()))?))
                }
                None => (rest, (key == "dies").then_some(DIES_STEP)),
            };
            range(number(from)?, number(to)?, step)
                .ok_or_else(|| bad("give a range that rises, and a step above 0".to_owned()))?
        }
        None => values.split(',').map(number).collect::<Result<_, _>>()?,
    };
    Ok(SweptKey { key: key.to_owned(), values: numbers.iter().map(f64::to_string).collect() })
}

/// From this to that in such steps, or doubling; the last is always there.
fn range(from: f64, to: f64, step: Option<f64>) -> Option<Vec<f64>> {
    if from > to
        || step.is_some_and(|s| !s.is_finite() || s <= 0.0)
        || (step.is_none() && from <= 0.0)
    {
        return None;
    }
    let mut all = vec![from];
    while let Some(last) = all.last().copied() {
        let next = step.map_or(last * 2.0, |s| last + s);
        if next >= to || all.len() >= MAX_DESIGNS {
            break;
        }
        all.push(next);
    }
    if to > from {
        all.push(to);
    }
    Some(all)
}

/// A design of a sweep: what was set, and the design, or why it is impossible.
#[derive(Debug, Clone, PartialEq)]
pub struct SweptDesign {
    /// Key and value, in the order of the sweep.
    pub settings: Vec<(String, String)>,
    /// The design.
    pub design: Result<StackDesign, StackError>,
}

/// All combinations, the last key fastest. A bonding technique or generation brings its defaults;
/// keys after it change them.
///
/// # Errors
/// [`StackError::Sweep`] when there are more than 10,000.
pub fn designs(base: &StackDesign, keys: &[SweptKey]) -> Result<Vec<SweptDesign>, StackError> {
    let count = keys.iter().try_fold(1_usize, |n, k| n.checked_mul(k.values.len()));
    if count.is_none_or(|n| n > MAX_DESIGNS) {
        return Err(StackError::Sweep {
            text: keys.iter().map(|k| k.key.as_str()).collect::<Vec<_>>().join(", "),
            why: format!("more than {MAX_DESIGNS} designs; give fewer values"),
        });
    }
    let mut all = vec![(Vec::new(), base.clone())];
    for key in keys {
        let mut more = Vec::with_capacity(all.len() * key.values.len());
        for (settings, design) in &all {
            for value in &key.values {
                let mut settings: Vec<(String, String)> = settings.clone();
                settings.push((key.key.clone(), value.clone()));
                let mut design = design.clone();
                set(&mut design, &key.key, value);
                more.push((settings, design));
            }
        }
        all = more;
    }
    Ok(all
        .into_iter()
        .map(|(settings, mut design)| {
            if !settings.is_empty() {
                let named: Vec<String> =
                    settings.iter().map(|s| format!("{}={}", s.0, s.1)).collect();
                design.name = format!("{} {}", base.name, named.join(" "));
            }
            let design = file::check(&design).map(|()| design);
            SweptDesign { settings, design }
        })
        .collect())
}

fn set(design: &mut StackDesign, key: &str, value: &str) {
    if let Some(field) = NAMES.iter().find(|f| f.key == key) {
        if let Some(index) = (field.names)().iter().position(|n| *n == value) {
            (field.set)(design, index);
        }
    } else if let (Some(field), Ok(number)) =
        (NUMBERS.iter().find(|f| f.key == key), value.parse::<f64>())
    {
        field.set(design, number);
    }
}

/// What designs are compared by: more is better.
#[must_use]
pub fn merits(e: &StackEvaluation) -> [f64; 5] {
    [
        e.sustained_bytes_per_s.mixed,
        e.capacity_bytes as f64,
        -e.temperatures.hottest_c(),
        -e.stream_pj_per_bit.total(),
        -e.cost.relative_cost,
    ]
}

/// Which designs no other beats in all merits at once; designs that hold all limits are compared
/// among themselves, or where there are none, all.
#[must_use]
pub fn pareto(evaluations: &[Option<&StackEvaluation>]) -> Vec<bool> {
    let holds = |e: &StackEvaluation| e.violations.is_empty();
    let strict = evaluations.iter().flatten().any(|e| holds(e));
    let compared = |e: &&StackEvaluation| !strict || holds(e);
    let points: Vec<Option<[f64; 5]>> =
        evaluations.iter().map(|e| e.filter(compared).map(merits)).collect();
    let beats = |a: &[f64; 5], b: &[f64; 5]| {
        a.iter().zip(b).all(|(x, y)| x >= y) && a.iter().zip(b).any(|(x, y)| x > y)
    };
    points
        .iter()
        .map(|p| p.as_ref().is_some_and(|p| !points.iter().flatten().any(|q| beats(q, p))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_step_double_or_list() {
        let values = |t: &str| parse(t).unwrap().values.join(" ");
        assert_eq!(values("dies=4..24"), "4 8 12 16 20 24");
        assert_eq!(values("dies=4..9:2"), "4 6 8 9");
        assert_eq!(values("tsv_um=1..5"), "1 2 4 5");
        assert_eq!(values("bonding=microbump,hybrid"), "microbump hybrid");
        for bad in
            ["dies", "dies=4..99", "dies=9..4", "dies=1.5", "bonding=glue", "x=1", "dies=4..8:0"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse("cake=1").unwrap_err().to_string().contains("data_rate_gbps"));
    }

    #[test]
    fn all_combinations_are_there_and_impossible_ones_say_why() {
        let base = super::super::presets::preset("hbm3").unwrap();
        let keys = [parse("dies=4..12:2").unwrap(), parse("bonding=microbump,hybrid").unwrap()];
        let all = designs(&base, &keys).unwrap();
        assert_eq!(all.len(), 10);
        // Dies come in fours where four make a set of channels.
        let possible = all.iter().filter(|d| d.design.is_ok()).count();
        assert_eq!(possible, 6);
        let why = all[2].design.as_ref().unwrap_err().to_string();
        assert!(why.contains("6 dies of 4 channels"), "{why}");
        let many = parse("dies=1..32:1").unwrap();
        assert!(designs(&base, &[many.clone(), many.clone(), many]).is_err());
    }
}
