//! Stacks drawn to scale, dies coloured by temperature.

use crate::markup::{brief, escape, put};

/// Height of the drawing's scale, in its own units.
const HEIGHT: f64 = 420.0;
const WIDTH: f64 = 960.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 16.0;
/// Room for the names.
const BOTTOM: f64 = 52.0;
/// Least distance of two labels.
const LABEL: f64 = 14.0;

/// A stack: its name, and kind, thickness (um) and temperature (C) of its layers from the bottom.
pub(super) struct Stack {
    pub name: String,
    pub limit_um: Option<f64>,
    pub layers: Vec<(String, f64, Option<f64>)>,
}

impl Stack {
    fn height_um(&self) -> f64 {
        self.layers.iter().map(|l| l.1).sum()
    }
}

/// Draws stacks beside each other on one scale.
pub(super) fn cross_sections(body: &mut String, stacks: &[Stack]) {
    let tallest =
        stacks.iter().map(|s| s.height_um().max(s.limit_um.unwrap_or(0.0))).fold(1.0, f64::max);
    let heat: Vec<f64> = stacks.iter().flat_map(|s| &s.layers).filter_map(|l| l.2).collect();
    let coldest = heat.iter().copied().fold(f64::INFINITY, f64::min);
    let hottest = heat.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let full = HEIGHT + TOP + BOTTOM;
    put!(
        body,
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {full}\" role=\"img\" \
         aria-label=\"Cross-sections\">\n"
    );
    let y_of = |um: f64| TOP + HEIGHT * (1.0 - um / tallest);
    for um in crate::chart::ticks(tallest, 6) {
        let y = y_of(um);
        put!(
            body,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{um} um</text>\n",
            LEFT - 8.0,
            y + 4.0
        );
    }
    let each = (WIDTH - LEFT) / stacks.len() as f64;
    let wide = (each * 0.4).min(240.0);
    for (index, stack) in stacks.iter().enumerate() {
        let x = LEFT + each * index as f64 + 14.0;
        layers(body, stack, x, wide, &y_of, (coldest, hottest));
        if let Some(limit) = stack.limit_um {
            let y = y_of(limit);
            put!(
                body,
                "<line class=\"level\" x1=\"{x:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\">\
                 <title>the package's limit, {limit:.0} um</title></line>\n",
                x + wide
            );
        }
        let words: Vec<&str> = stack.name.split(' ').collect();
        for (line, word) in words.iter().take(3).enumerate() {
            put!(
                body,
                "<text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>\n",
                HEIGHT + TOP + 16.0 + 15.0 * line as f64,
                brief(word, (each / 7.5) as usize)
            );
        }
    }
    body.push_str("</svg>\n");
    put!(
        body,
        "<p class=\"small under\">Dies from {coldest:.1} C (blue) to {hottest:.1} C (orange), the \
         hottest place of each; between them bond layers. Broken line: what the package \
         allows.</p>\n"
    );
}

fn layers(
    body: &mut String,
    stack: &Stack,
    x: f64,
    wide: f64,
    y_of: &impl Fn(f64) -> f64,
    (coldest, hottest): (f64, f64),
) {
    let mut bottom = 0.0;
    let mut last_label = f64::INFINITY;
    let mut die = 0;
    for (kind, um, celsius) in &stack.layers {
        let (y, below) = (y_of(bottom + um), y_of(bottom));
        bottom += um;
        let label = match (kind.as_str(), celsius) {
            ("die", Some(c)) => {
                die += 1;
                format!("{die}: {c:.1} C")
            }
            ("base", Some(c)) => format!("base: {c:.1} C"),
            _ => String::new(),
        };
        let fill = match celsius {
            Some(c) => {
                let hot = (c - coldest) / (hottest - coldest).max(1e-9) * 100.0;
                format!("color-mix(in oklab, var(--t1) {:.0}%, var(--t0))", hot.clamp(0.0, 100.0))
            }
            None => "var(--rule)".to_owned(),
        };
        put!(
            body,
            "<rect x=\"{x:.1}\" y=\"{y:.2}\" width=\"{wide:.1}\" height=\"{:.2}\" \
             style=\"fill:{fill}\"><title>{}, {um} um {}</title></rect>\n",
            (below - y).max(0.3),
            escape(kind),
            escape(&label)
        );
        let middle = (y + below) / 2.0;
        if !label.is_empty() && last_label - middle >= LABEL {
            put!(
                body,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
                x + wide + 6.0,
                middle + 4.0,
                escape(&label)
            );
            last_label = middle;
        }
    }
}
