//! What pages of studies have in common: JSON that a command printed, which is another's word, read
//! value by value and bounded.

use serde_json::Value;

/// Whether these bytes look like a study of this kind, before they are parsed.
pub fn looks_like(data: &[u8], kind: &str) -> bool {
    let has = |key: &str| {
        let key = format!("\"{key}\"");
        data.windows(key.len()).any(|w| w == key.as_bytes())
    };
    data.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{') && has(kind) && has("runs")
}

/// Reads the JSON of a study of version 1 with a list of runs.
pub fn read(data: &[u8]) -> Result<Value, String> {
    let value: Value = serde_json::from_slice(data).map_err(|e| e.to_string())?;
    if value["version"] != 1 {
        return Err(format!("version {}, known is 1", value["version"]));
    }
    value["runs"].as_array().ok_or("no list of runs")?;
    Ok(value)
}

/// The values of a list; none of anything else.
pub fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A value as text, quotes off, bounded.
pub fn text(value: &Value) -> String {
    let all = match value {
        Value::String(text) => text.clone(),
        Value::Null => "unknown".to_owned(),
        other => other.to_string(),
    };
    all.chars().filter(|c| !c.is_control()).take(200).collect()
}

/// A number that is finite and not negative, else zero.
pub fn number(value: &Value) -> f64 {
    value.as_f64().filter(|v| v.is_finite() && *v >= 0.0).unwrap_or(0.0)
}
