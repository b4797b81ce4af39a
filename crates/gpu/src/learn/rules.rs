//! Ordered rules: the first whose conditions all hold gives the prediction.

use super::tree::TrainingSet;
use serde::{Deserialize, Serialize};

/// One comparison of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RuleCondition {
    /// The feature's position.
    pub feature: u32,
    /// Whether the feature must be above the threshold; else at or below it.
    pub above: bool,
    /// The threshold.
    pub threshold: f64,
}

/// A rule and the mean gain of the rows that it covered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GainRule {
    /// All must hold.
    pub conditions: Vec<RuleCondition>,
    /// The prediction.
    pub value: f64,
    /// Rows that it covered in training.
    pub rows: u32,
}

/// Rules in order, and what holds where none does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RuleList {
    /// The rules.
    pub rules: Vec<GainRule>,
    /// The mean of the rows that no rule covers.
    pub otherwise: f64,
}

/// A gain counts when it is above 5%: log2 of 1.05.
pub(crate) const POSITIVE: f64 = 0.07;
/// Most rules, and most conditions of one: more would not be readable.
const MOST_RULES: usize = 12;
const MOST_CONDITIONS: usize = 4;
/// Fewest rows that a rule covers.
const LEAST_ROWS: usize = 6;
/// Least share of rows of a rule that gain.
const LEAST_PRECISION: f64 = 0.8;
/// Thresholds that are tried for a feature.
const THRESHOLDS: usize = 16;

impl RuleList {
    /// Learns rules for rows that gain, one after the other; what a rule covers is taken away.
    #[must_use]
    pub fn learn(set: &TrainingSet) -> Self {
        let mut left: Vec<usize> = (0..set.rows.len()).collect();
        let mut rules = Vec::new();
        while rules.len() < MOST_RULES {
            let Some(rule) = grow(set, &left) else { break };
            left.retain(|row| !holds(&rule.conditions, &set.rows[*row]));
            rules.push(rule);
        }
        let sum: f64 = left.iter().map(|row| set.targets[*row]).sum();
        Self { rules, otherwise: sum / left.len().max(1) as f64 }
    }

    /// The prediction for a row.
    #[must_use]
    pub fn predict(&self, row: &[f64]) -> f64 {
        self.matching(row).map_or(self.otherwise, |rule| rule.value)
    }

    /// The first rule that holds for a row.
    #[must_use]
    pub fn matching(&self, row: &[f64]) -> Option<&GainRule> {
        self.rules.iter().find(|rule| holds(&rule.conditions, row))
    }
}

fn holds(conditions: &[RuleCondition], row: &[f64]) -> bool {
    conditions.iter().all(|c| {
        let value = row.get(c.feature as usize).copied().unwrap_or(0.0);
        (value > c.threshold) == c.above
    })
}

/// Adds the condition with the greatest gain in information (FOIL's) until the rule is precise.
fn grow(set: &TrainingSet, left: &[usize]) -> Option<GainRule> {
    let positive = |rows: &[usize]| rows.iter().filter(|r| set.targets[**r] > POSITIVE).count();
    let mut covered = left.to_vec();
    let mut conditions: Vec<RuleCondition> = Vec::new();
    while conditions.len() < MOST_CONDITIONS {
        let (p0, n0) = (positive(&covered) as f64, covered.len() as f64);
        if p0 == 0.0 || p0 / n0 > 0.97 {
            break;
        }
        let mut best: Option<(f64, RuleCondition)> = None;
        for condition in candidates(set, &covered) {
            let rows = covered.iter().filter(|r| holds(&[condition], &set.rows[**r]));
            let (mut p, mut n) = (0.0, 0.0);
            for row in rows {
                n += 1.0;
                p += f64::from(u8::from(set.targets[*row] > POSITIVE));
            }
            if n < LEAST_ROWS as f64 || p == 0.0 {
                continue;
            }
            let gain = p * ((p / n).log2() - (p0 / n0).log2());
            if gain > 1e-9 && best.is_none_or(|(b, _)| gain > b) {
                best = Some((gain, condition));
            }
        }
        let Some((_, condition)) = best else { break };
        conditions.push(condition);
        covered.retain(|row| holds(&[condition], &set.rows[*row]));
    }
    let rows = covered.len();
    if conditions.is_empty()
        || rows < LEAST_ROWS
        || (positive(&covered) as f64) < LEAST_PRECISION * rows as f64
    {
        return None;
    }
    let value = covered.iter().map(|r| set.targets[*r]).sum::<f64>() / rows as f64;
    Some(GainRule { conditions, value, rows: rows as u32 })
}

fn candidates(set: &TrainingSet, covered: &[usize]) -> Vec<RuleCondition> {
    let width = covered.first().map_or(0, |row| set.rows[*row].len());
    let mut out = Vec::new();
    for feature in 0..width {
        let mut values: Vec<f64> = covered.iter().map(|row| set.rows[*row][feature]).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let step = values.len().div_ceil(THRESHOLDS).max(1);
        for pair in values.windows(2).step_by(step) {
            let threshold = f64::midpoint(pair[0], pair[1]);
            out.extend([true, false].map(|above| RuleCondition {
                feature: feature as u32,
                above,
                threshold,
            }));
        }
    }
    out
}
