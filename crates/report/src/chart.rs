//! Drawing: scales, ticks, axes and areas, as SVG and HTML text.
//!
//! A chart is as wide as the page allows: its drawing is an SVG that stretches sideways, its labels
//! are HTML beside it, whose text keeps its size. Where labels would touch each other on a narrower
//! page, classes hide some of them there (`assets/style.css`).

use crate::markup::{escape, put};

/// Units of a drawing's width, whatever its width on the page.
const WIDE: f64 = 1000.0;
/// Space below for the horizontal axis' labels, and above; pixels.
const BOTTOM: f64 = 30.0;
const TOP: f64 = 10.0;
/// Pixels that a drawing has at least on a page of 1,040 pixels or more, on one of 800 and on one
/// of 390: less the space for labels and borders.
const WIDTHS: [f64; 3] = [860.0, 560.0, 236.0];
/// Pixels of a character of a label, by the widest of the fonts in the style, and between labels.
const CHARACTER: f64 = 7.0;
const BETWEEN: f64 = 12.0;
/// Pixels between the labels of the vertical axis, from line to line.
const LINE: f64 = 15.0;

/// A chart under construction: time (seconds) to the right, a quantity upwards.
#[derive(Debug)]
pub struct Chart {
    name: String,
    svg: String,
    labels: String,
    height: f64,
    last: f64,
    top: f64,
}

/// One series of a stacked area, or a line.
#[derive(Debug, Clone)]
pub struct Series {
    /// Class, which gives the colour.
    pub class: String,
    /// One value for each time.
    pub values: Vec<f64>,
}

impl Chart {
    /// An empty chart from time 0 to `last` seconds and from 0 to `top`, for the screen reader
    /// called `name`. `marks` are the values marked on the vertical axis, with their names.
    #[must_use]
    pub fn new(name: &str, height: f64, last: f64, top: f64, marks: &[(f64, String)]) -> Self {
        let last = last.max(1e-9);
        Self::with_axes(name, height, last, top, marks, &time_labels(last))
    }

    /// An empty chart whose horizontal axis goes from 0 to 1 and has these labels.
    #[must_use]
    pub fn labelled(
        name: &str,
        height: f64,
        top: f64,
        marks: &[(f64, String)],
        labels: &[(f64, String)],
    ) -> Self {
        Self::with_axes(name, height, 1.0, top, marks, labels)
    }

    fn with_axes(
        name: &str,
        height: f64,
        last: f64,
        top: f64,
        marks: &[(f64, String)],
        labels: &[(f64, String)],
    ) -> Self {
        let top = if top > 0.0 { top } else { 1.0 };
        let (svg, name) = (String::new(), name.to_owned());
        let mut chart = Self { name, svg, labels: String::new(), height, last, top };
        chart.mark_values(marks);
        let places: Vec<(f64, &str)> =
            labels.iter().map(|(at, name)| (share(*at, last), name.as_str())).collect();
        chart.labels.push_str(&tick_labels(&places));
        chart
    }

    fn mark_values(&mut self, marks: &[(f64, String)]) {
        let mut labelled: Vec<f64> = Vec::new();
        for (value, label) in marks {
            let y = self.y(*value);
            put!(&mut self.svg, "<path class=\"grid\" d=\"M0,{y:.1}H{WIDE}\"/>\n");
            if labelled.iter().all(|before| (before - y).abs() >= LINE) {
                labelled.push(y);
                put!(
                    &mut self.labels,
                    "<span class=\"tick up\" style=\"top:{y:.1}px\">{}</span>\n",
                    escape(label)
                );
            }
        }
    }

    fn x(&self, time: f64) -> f64 {
        WIDE * share(time, self.last)
    }

    /// Pixels from the top of the drawing.
    fn y(&self, value: f64) -> f64 {
        self.inner() * (1.0 - share(value, self.top))
    }

    /// Height of the drawing, without labels.
    fn inner(&self) -> f64 {
        self.height - BOTTOM - TOP
    }

    /// Areas stacked upon each other, the first at the bottom.
    pub fn stack(&mut self, times: &[f64], series: &[Series]) {
        let mut floor = vec![0.0; times.len()];
        for one in series {
            let ceiling: Vec<f64> = floor.iter().zip(&one.values).map(|(a, b)| a + b).collect();
            let mut path = String::new();
            for (i, (time, value)) in times.iter().zip(&ceiling).enumerate() {
                let verb = if i == 0 { 'M' } else { 'L' };
                put!(&mut path, "{verb}{:.1},{:.1}", self.x(*time), self.y(*value));
            }
            for (time, value) in times.iter().zip(&floor).rev() {
                put!(&mut path, "L{:.1},{:.1}", self.x(*time), self.y(*value));
            }
            put!(&mut self.svg, "<path class=\"area {}\" d=\"{path}Z\"/>\n", escape(&one.class));
            floor = ceiling;
        }
    }

    /// A line through the values.
    pub fn line(&mut self, times: &[f64], series: &Series) {
        let mut path = String::new();
        let mut pen_up = true;
        for (time, value) in times.iter().zip(&series.values) {
            if !value.is_finite() {
                pen_up = true;
                continue;
            }
            let verb = if pen_up { 'M' } else { 'L' };
            put!(&mut path, "{verb}{:.1},{:.1}", self.x(*time), self.y(*value));
            pen_up = false;
        }
        put!(&mut self.svg, "<path class=\"line {}\" d=\"{path}\"/>\n", escape(&series.class));
    }

    /// A level across the whole chart, named at its right end.
    pub fn level(&mut self, value: f64, class: &str, name: &str) {
        let y = self.y(value);
        put!(&mut self.svg, "<path class=\"level {}\" d=\"M0,{y:.1}H{WIDE}\"/>\n", escape(class));
        let side = if y < LINE + 4.0 { "below" } else { "above" };
        put!(
            &mut self.labels,
            "<span class=\"note {side}\" style=\"top:{y:.1}px\">{}</span>\n",
            escape(name)
        );
    }

    /// A point that tells its figures.
    pub fn dot(&mut self, time: f64, value: f64, class: &str, title: &str) {
        let (x, y) = (self.x(time), self.y(value));
        put!(
            &mut self.svg,
            "<path class=\"dot {}\" d=\"M{x:.1},{y:.1}h0\"><title>{}</title></path>\n",
            escape(class),
            escape(title)
        );
    }

    /// A bar at a time, `from` to `to`.
    pub fn bar(&mut self, time: f64, from: f64, to: f64, class: &str, title: &str) {
        let (x, y0, y1) = (self.x(time), self.y(from), self.y(to));
        let far = if (y1 - y0).abs() < 1.0 { y0 + (y1 - y0).signum() } else { y1 };
        put!(
            &mut self.svg,
            "<path class=\"moves {}\" d=\"M{x:.1},{y0:.1}V{far:.1}\"><title>{}</title></path>\n",
            escape(class),
            escape(title)
        );
    }

    /// A bar from the axis up, as wide as from one place of the horizontal axis to another.
    pub fn block(&mut self, (from, to): (f64, f64), value: f64, class: &str, title: &str) {
        let (x0, x1, y, base) = (self.x(from), self.x(to), self.y(value), self.y(0.0));
        put!(
            &mut self.svg,
            "<rect class=\"area {}\" x=\"{x0:.1}\" y=\"{y:.1}\" width=\"{:.1}\" \
                height=\"{:.1}\"><title>{}</title></rect>\n",
            escape(class),
            (x1 - x0).max(1.0),
            (base - y).max(1.0),
            escape(title)
        );
    }

    /// The drawing.
    #[must_use]
    pub fn finish(self) -> String {
        let inner = self.inner();
        format!(
            "<div class=\"chart\" role=\"img\" aria-label=\"{}\" style=\"height:{}px\">\
             <div class=\"plot\">\n<svg viewBox=\"0 0 {WIDE} {inner}\" \
             preserveAspectRatio=\"none\">\n\
             {}<path class=\"axis\" d=\"M0,{inner}H{WIDE}\"/>\n</svg>\n{}</div></div>\n",
            escape(&self.name),
            self.height,
            self.svg,
            self.labels
        )
    }
}

/// Labels of a horizontal axis, each at its share of the width, in ascending order. Where not all
/// have space, every second, third, ... is shown.
#[must_use]
pub fn tick_labels(labels: &[(f64, &str)]) -> String {
    let half = |name: &str| name.chars().count() as f64 * CHARACTER / 2.0;
    let fits = |width: f64, stride: usize| {
        let mut end = f64::NEG_INFINITY;
        labels.iter().step_by(stride).all(|(at, name)| {
            let free = at * width - half(name) >= end + BETWEEN;
            end = at * width + half(name);
            free
        })
    };
    let stride = |width: f64| (1..labels.len()).find(|stride| fits(width, *stride));
    let strides = WIDTHS.map(|width| stride(width).unwrap_or(labels.len()).max(1));
    let mut html = String::new();
    for (number, (at, name)) in labels.iter().enumerate() {
        let shown = strides.map(|stride| number % stride == 0);
        if !shown.contains(&true) {
            continue;
        }
        let hidden: String = ["not-large", "not-medium", "not-small"]
            .iter()
            .zip(shown)
            .filter(|(_, shown)| !shown)
            .map(|(class, _)| format!(" {class}"))
            .collect();
        put!(
            &mut html,
            "<span class=\"tick across{hidden}\" style=\"left:{:.2}%\">{}</span>\n",
            at * 100.0,
            escape(name)
        );
    }
    html
}

/// Round times from 0 to `last` seconds, the first with its unit.
#[must_use]
pub fn time_labels(last: f64) -> Vec<(f64, String)> {
    let (unit, name) = match last {
        s if s >= 0.1 => (1.0, "s"),
        s if s >= 1e-4 => (1e-3, "ms"),
        s if s >= 1e-7 => (1e-6, "µs"),
        _ => (1e-9, "ns"),
    };
    let times = ticks(last / unit, 8);
    let digits = decimals(&times);
    let first = |i: usize| if i == 0 { format!(" {name}") } else { String::new() };
    let label = |(i, t): (usize, &f64)| {
        let number = if *t == 0.0 { "0".to_owned() } else { format!("{t:.digits$}") };
        (*t * unit, number + &first(i))
    };
    times.iter().enumerate().map(label).collect()
}

/// `part` of `whole`, within 0 and 1; 0 for what is no number.
fn share(part: f64, whole: f64) -> f64 {
    let share = part / whole;
    if share.is_nan() {
        0.0
    } else {
        share.clamp(0.0, 1.0)
    }
}

/// A legend: coloured squares with names.
#[must_use]
pub fn legend(items: &[(String, String)]) -> String {
    let mut html = "<div class=\"legend\">".to_owned();
    for (class, name) in items {
        put!(&mut html, "<span><i class=\"key {}\"></i>{}</span>", escape(class), escape(name));
    }
    html.push_str("</div>\n");
    html
}

/// Round values from 0 to at most `top`, about `wanted` of them.
#[must_use]
pub fn ticks(top: f64, wanted: usize) -> Vec<f64> {
    if !top.is_finite() || top <= 0.0 {
        return vec![0.0];
    }
    let rough = top / wanted.max(1) as f64;
    let exponent = rough.log10().floor() as i32;
    // Divided by a power of ten, 6 tenths are the number nearest to 0.6; 3 times 0.2 are not.
    let scaled = |digits: f64| match exponent {
        0.. => digits * 10f64.powi(exponent),
        _ => digits / 10f64.powi(-exponent),
    };
    let digits = [1.0, 2.0, 5.0].into_iter().find(|d| scaled(*d) >= rough * 0.999).unwrap_or(10.0);
    (0..=wanted * 2).map(|i| scaled(i as f64 * digits)).take_while(|v| *v <= top * 1.0001).collect()
}

/// Marks at round values up to `top`. Values whose label is that of the one before have none, as
/// where counts are whole and ticks are not.
#[must_use]
pub fn marks(top: f64, label: impl Fn(f64) -> String) -> Vec<(f64, String)> {
    let mut marks: Vec<(f64, String)> =
        ticks(top, 4).into_iter().map(|value| (value, label(value))).collect();
    marks.dedup_by(|later, earlier| later.1 == earlier.1);
    marks
}

/// Marks at powers of two and their multiples, and the top of an axis that holds `most` bytes.
#[must_use]
pub fn byte_marks(most: f64, label: impl Fn(f64) -> String) -> (f64, Vec<(f64, String)>) {
    let mut step = 1024.0;
    while step * 4.0 < most && step < 1e18 {
        step *= 2.0;
    }
    let steps = (most / step).ceil().clamp(1.0, 4.0) as u32;
    let marks = (0..=steps).map(|i| f64::from(i) * step).map(|v| (v, label(v))).collect();
    ((f64::from(steps) * step).max(most), marks)
}

/// Digits behind the point that tell ticks apart.
#[must_use]
pub fn decimals(values: &[f64]) -> usize {
    let Some(step) = values.get(1).filter(|s| **s > 0.0) else {
        return 0;
    };
    (-step.log10().floor()).clamp(0.0, 9.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_axis() {
        assert_eq!(ticks(10.0, 5), vec![0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(0.7, 4), vec![0.0, 0.2, 0.4, 0.6]);
        for exponent in -18..18 {
            for top in [1.0, 1.3, 2.9, 6.6].map(|top| top * 10f64.powi(exponent)) {
                let long = |v: &f64| format!("{v:e}").len() > "1.25e-18".len();
                assert!(!ticks(top, 4).iter().any(long), "{top}: {:?}", ticks(top, 4));
            }
        }
        assert_eq!(ticks(f64::NAN, 4), vec![0.0]);
        assert_eq!(ticks(0.0, 4), vec![0.0]);
        for top in [1e-9, 0.03, 7.0, 123.0, 9e15] {
            let got = ticks(top, 6);
            assert!((3..=13).contains(&got.len()), "{top}: {got:?}");
        }
    }

    #[test]
    fn labels_are_short_whatever_the_span_and_none_is_repeated() {
        for last in [1e-9, 2.5e-6, 0.0007, 0.61, 1.3, 7.0, 95.0, 3e4, 9e9] {
            let labels: Vec<String> = time_labels(last).into_iter().map(|l| l.1).collect();
            let longest = labels.iter().map(|l| l.chars().count()).max().unwrap_or(0);
            assert!(labels.len() > 2 && longest <= 10, "{last}: {labels:?}");
            let apart: std::collections::BTreeSet<&String> = labels.iter().collect();
            assert_eq!(apart.len(), labels.len(), "{last}: {labels:?}");
        }
        let whole = marks(2.1, |v| format!("{v:.0}"));
        assert!(whole.windows(2).all(|w| w[0].1 != w[1].1), "{whole:?}");
    }

    #[test]
    fn labels_that_would_touch_are_hidden_where_they_would() {
        let names: Vec<String> = (0..=8).map(|i| format!("{} MiB", i * 128)).collect();
        let labels: Vec<(f64, &str)> =
            names.iter().enumerate().map(|(i, n)| (i as f64 / 8.0, n.as_str())).collect();
        let html = tick_labels(&labels);
        assert_eq!(html.matches("<span").count(), 9);
        for (width, class) in WIDTHS.iter().zip(["not-large", "not-medium", "not-small"]) {
            let mut end = f64::NEG_INFINITY;
            for ((at, name), line) in labels.iter().zip(html.lines()) {
                if !line.contains(class) {
                    let half = name.len() as f64 * CHARACTER / 2.0;
                    assert!(at * width - half > end, "{name} at {width} pixels");
                    end = at * width + half;
                }
            }
            assert!(end > 0.0);
        }
        assert!(html.matches("not-small").count() >= 5 && !html.contains("not-large"));
        assert_eq!(
            tick_labels(&[(0.5, "same place"), (0.5, "hidden")]).matches("<span").count(),
            1
        );
    }

    #[test]
    fn a_chart_holds_what_was_drawn_and_no_number_is_broken() {
        let marks = [(f64::NAN, "<b>".to_owned())];
        let mut chart = Chart::new("a <name>", 200.0, 0.0, f64::NAN, &marks);
        let series = Series { class: "t0".into(), values: vec![1.0, f64::NAN, 3.0] };
        chart.line(&[0.0, 1.0, 2.0], &series);
        let html = chart.finish();
        assert!(html.contains("a &lt;name&gt;") && !html.contains("NaN"), "{html}");
    }
}
