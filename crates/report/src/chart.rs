//! Drawing: scales, ticks, axes and areas, as SVG text.

use crate::markup::{escape, put};

/// Width of every chart in its own units; the page scales it.
pub const WIDTH: f64 = 960.0;
/// Room for labels on the left.
pub const LEFT: f64 = 104.0;
/// Room on the right.
pub const RIGHT: f64 = 16.0;
const BOTTOM: f64 = 30.0;
const TOP: f64 = 10.0;

/// A chart under construction: time (seconds) to the right, a quantity upwards.
#[derive(Debug)]
pub struct Chart {
    svg: String,
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
        let times = ticks(last, 8);
        let digits = decimals(&times);
        let unit = |i: usize| if i == 0 { " s" } else { "" };
        let labels: Vec<_> = times
            .iter()
            .enumerate()
            .map(|(i, t)| (*t, format!("{t:.digits$}{}", unit(i))))
            .collect();
        Self::with_axes(name, height, last, top, marks, &labels)
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
        let mut chart = Self { svg: String::new(), height, last, top };
        put!(
            &mut chart.svg,
            "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             aria-label=\"{}\" data-left=\"{LEFT}\" data-right=\"{RIGHT}\" data-last=\"{last:.6}\">\n",
            escape(name)
        );
        for (value, label) in marks {
            let y = chart.y(*value);
            put!(
                &mut chart.svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
                WIDTH - RIGHT,
                LEFT - 8.0,
                y + 4.0,
                escape(label)
            );
        }
        for (value, label) in labels {
            let x = chart.x(*value);
            put!(
                &mut chart.svg,
                "<text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
                height - BOTTOM + 18.0,
                escape(label)
            );
        }
        chart
    }

    fn x(&self, time: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * share(time, self.last)
    }

    fn y(&self, value: f64) -> f64 {
        let share = share(value, self.top);
        self.height - BOTTOM - (self.height - BOTTOM - TOP) * share
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
        put!(
            &mut self.svg,
            "<line class=\"level {}\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"note\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            escape(class),
            WIDTH - RIGHT,
            WIDTH - RIGHT - 4.0,
            if y < TOP + 16.0 { y + 14.0 } else { y - 5.0 },
            escape(name)
        );
    }

    /// A point that tells its figures.
    pub fn dot(&mut self, time: f64, value: f64, class: &str, title: &str) {
        let (x, y) = (self.x(time), self.y(value));
        put!(
            &mut self.svg,
            "<circle class=\"dot {}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"><title>{}</title></circle>\n",
            escape(class),
            escape(title)
        );
    }

    /// A bar at a time, `from` to `to`.
    pub fn bar(&mut self, time: f64, from: f64, to: f64, class: &str, title: &str) {
        let (x, y0, y1) = (self.x(time) - 1.5, self.y(from), self.y(to));
        put!(
            &mut self.svg,
            "<rect class=\"{}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"3\" height=\"{:.1}\"><title>{}</title></rect>\n",
            escape(class),
            y1.min(y0),
            (y0 - y1).abs().max(1.0),
            escape(title)
        );
    }

    /// A bar from the axis up, as wide as from one place of the horizontal axis to another.
    pub fn block(&mut self, (from, to): (f64, f64), value: f64, class: &str, title: &str) {
        let (x0, x1, y, base) = (self.x(from), self.x(to), self.y(value), self.y(0.0));
        put!(
            &mut self.svg,
            "<rect class=\"area {}\" x=\"{x0:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}</title></rect>\n",
            escape(class),
            (x1 - x0).max(1.0),
            (base - y).max(1.0),
            escape(title)
        );
    }

    /// The drawing.
    #[must_use]
    pub fn finish(mut self) -> String {
        let base = self.height - BOTTOM;
        put!(
            &mut self.svg,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{base:.1}\" y2=\"{base:.1}\"/>\n</svg>\n",
            WIDTH - RIGHT
        );
        self.svg
    }
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
    let magnitude = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|m| m * magnitude)
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(rough);
    (0..=wanted * 2).map(|i| i as f64 * step).take_while(|v| *v <= top * 1.0001).collect()
}

/// Marks at round values up to `top`.
#[must_use]
pub fn marks(top: f64, label: impl Fn(f64) -> String) -> Vec<(f64, String)> {
    ticks(top, 4).into_iter().map(|value| (value, label(value))).collect()
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

fn decimals(values: &[f64]) -> usize {
    let Some(step) = values.get(1).filter(|s| **s > 0.0) else {
        return 0;
    };
    (-step.log10().floor()).clamp(0.0, 6.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_axis() {
        assert_eq!(ticks(10.0, 5), vec![0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(0.7, 4).len(), 4);
        assert_eq!(ticks(f64::NAN, 4), vec![0.0]);
        assert_eq!(ticks(0.0, 4), vec![0.0]);
        for top in [1e-9, 0.03, 7.0, 123.0, 9e15] {
            let got = ticks(top, 6);
            assert!((3..=13).contains(&got.len()), "{top}: {got:?}");
        }
    }

    #[test]
    fn a_chart_holds_what_was_drawn_and_no_number_is_broken() {
        let marks = [(f64::NAN, "<b>".to_owned())];
        let mut chart = Chart::new("a <name>", 200.0, 0.0, f64::NAN, &marks);
        let series = Series { class: "t0".into(), values: vec![1.0, f64::NAN, 3.0] };
        chart.line(&[0.0, 1.0, 2.0], &series);
        let svg = chart.finish();
        assert!(svg.contains("a &lt;name&gt;") && !svg.contains("NaN"), "{svg}");
    }
}
