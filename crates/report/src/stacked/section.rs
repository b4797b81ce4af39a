//! Stacks drawn to scale, dies coloured by temperature.

use crate::markup::{brief, escape, put};

/// Pixels of the tallest stack or limit.
const HEIGHT: f64 = 420.0;
/// Pixels that a stack and its labels are wide: two beside each other on a telephone.
const WIDTH: f64 = 158.0;
/// Pixels of a stack without labels.
const STACK: f64 = 64.0;
/// Pixels above the tallest.
const TOP: f64 = 16.0;
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
    let full = HEIGHT + TOP;
    let y_of = |um: f64| TOP + HEIGHT * (1.0 - um / tallest);
    body.push_str("<div class=\"stacks\">\n");
    for stack in stacks {
        put!(
            body,
            "<figure><svg width=\"{WIDTH}\" height=\"{full}\" role=\"img\" \
             aria-label=\"Cross-section of {}\">\n",
            brief(&stack.name, 60)
        );
        layers(body, stack, &y_of, (coldest, hottest));
        let mut words = brief(&stack.name, 60);
        put!(&mut words, "<br>{:.0} um", stack.height_um());
        if let Some(limit) = stack.limit_um {
            put!(
                body,
                "<path class=\"level\" d=\"M0 {:.1}H{STACK}\"><title>the package's limit, \
                 {limit:.0} um</title></path>\n",
                y_of(limit)
            );
            put!(&mut words, " of {limit:.0}");
        }
        put!(body, "</svg><figcaption>{words}</figcaption></figure>\n");
    }
    body.push_str("</div>\n");
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
            "<rect y=\"{y:.2}\" width=\"{STACK}\" height=\"{:.2}\" style=\"fill:{fill}\">\
             <title>{}, {um} um {}</title></rect>\n",
            (below - y).max(0.3),
            escape(kind),
            escape(&label)
        );
        let middle = (y + below) / 2.0;
        if !label.is_empty() && last_label - middle >= LABEL {
            put!(
                body,
                "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
                STACK + 6.0,
                middle + 4.0,
                escape(&label)
            );
            last_label = middle;
        }
    }
}
