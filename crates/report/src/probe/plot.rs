//! Plots of what was measured: axes, lines with points, bars.

use crate::chart::{legend, Chart, Series};
use crate::markup::{bytes, escape, put, rate};

/// A line of a plot: its name and points.
pub(super) type Line = (String, Vec<(f64, f64)>);

/// What an axis shows, and how.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Axis {
    /// Bytes, by doublings.
    Size,
    /// Nanoseconds, by powers of ten.
    Nanos,
    /// Counts from 0.
    Threads,
    /// Counts by doublings.
    Pages,
    /// A part of the whole, 0 to 1.
    Share,
    /// Bytes a second from 0.
    Rate,
}

impl Axis {
    /// Where a value lies, in the axis' own measure.
    fn place(self, value: f64) -> f64 {
        match self {
            Self::Size | Self::Pages => value.max(1.0).log2(),
            Self::Nanos => value.max(0.01).log10(),
            Self::Threads | Self::Share | Self::Rate => value,
        }
    }

    /// From where to where, in that measure, and marks with their names.
    fn span(self, values: &[f64]) -> (f64, f64, Vec<(f64, String)>) {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        match self {
            Self::Size | Self::Pages => {
                let (from, to) = (self.place(low).floor(), self.place(high).ceil().min(62.0));
                let step = ((to - from) / 9.0).ceil().max(1.0);
                let marks = (0..64).map(|k| from + f64::from(k) * step).take_while(|m| *m <= to);
                let name = |m: f64| describe(self, (1_u64 << (m as u32).min(62)) as f64);
                (from, to, marks.map(|m| (m, name(m))).collect())
            }
            Self::Nanos => {
                let (from, to) = (self.place(low).floor(), self.place(high).ceil());
                let decades = (0..20).map(|k| from + f64::from(k)).take_while(|m| *m <= to);
                let name = |m: f64| match 10_f64.powf(m) {
                    ns if ns >= 1e9 => format!("{} s", ns / 1e9),
                    ns if ns >= 1e6 => format!("{} ms", ns / 1e6),
                    ns if ns >= 1e3 => format!("{} us", ns / 1e3),
                    ns => format!("{ns} ns"),
                };
                (from, to.max(from + 1.0), decades.map(|m| (m, name(m))).collect())
            }
            Self::Threads => {
                let step = (high / 8.0).ceil().max(1.0);
                let whole = (0..=8).map(|k| f64::from(k) * step).take_while(|v| *v <= high);
                (0.0, high, whole.map(|v| (v, format!("{v:.0}"))).collect())
            }
            Self::Share => (
                0.0,
                1.0,
                (0..=4).map(|k| f64::from(k) / 4.0).map(|v| (v, describe(self, v))).collect(),
            ),
            Self::Rate => (0.0, high * 1.05, crate::chart::marks(high * 1.05, rate_mark)),
        }
    }
}

/// A plot of lines with points, where there is more than one point.
pub(super) fn plot(body: &mut String, title: &str, lines: &[Line], across: Axis, up: Axis) {
    let all: Vec<(f64, f64)> = lines
        .iter()
        .flat_map(|l| l.1.iter().copied())
        .filter(|p| p.0 >= 0.0 && p.1 > 0.0)
        .collect();
    if all.len() < 2 {
        return;
    }
    let one = all.iter().all(|p| p.0 == all[0].0);
    if let (true, Axis::Threads, Axis::Rate) = (one, across, up) {
        let threads = format!("{title} ({} threads)", describe(across, all[0].0));
        let figures: Vec<(&str, f64)> = lines
            .iter()
            .flat_map(|(name, points)| points.iter().map(move |p| (name.as_str(), p.1)))
            .collect();
        return bars(body, &threads, &figures);
    }
    let (x0, x1, labels) = across.span(&all.iter().map(|p| p.0).collect::<Vec<_>>());
    let (y0, y1, marks) = up.span(&all.iter().map(|p| p.1).collect::<Vec<_>>());
    let width = (x1 - x0).max(1e-9);
    let labels: Vec<(f64, String)> =
        labels.into_iter().map(|(at, name)| ((at - x0) / width, name)).collect();
    let marks: Vec<(f64, String)> = marks.into_iter().map(|(at, name)| (at - y0, name)).collect();
    put!(body, "<h3>{}</h3>\n", escape(title));
    let mut chart = Chart::labelled(title, 260.0, y1 - y0, &marks, &labels);
    for (index, (name, points)) in lines.iter().enumerate().filter(|l| !l.1 .1.is_empty()) {
        let times: Vec<f64> = points.iter().map(|p| (across.place(p.0) - x0) / width).collect();
        let values: Vec<f64> = points.iter().map(|p| up.place(p.1) - y0).collect();
        let class = format!("t{}", index % 8);
        chart.line(&times, &Series { class: class.clone(), values: values.clone() });
        for ((x, y), point) in times.iter().zip(&values).zip(points) {
            chart.dot(
                *x,
                *y,
                &class,
                &format!("{name}: {} at {}", describe(up, point.1), describe(across, point.0)),
            );
        }
    }
    body.push_str(&chart.finish());
    let names: Vec<(String, String)> = lines
        .iter()
        .enumerate()
        .filter(|l| !l.1 .1.is_empty())
        .map(|(index, l)| (format!("t{}", index % 8), l.0.clone()))
        .collect();
    body.push_str(&legend(&names));
}

/// A bar a figure, bytes a second: where one count of threads was measured, there is nothing to
/// draw a line through.
pub(super) fn bars(body: &mut String, title: &str, figures: &[(&str, f64)]) {
    let most = figures.iter().map(|f| f.1).fold(1.0, f64::max);
    put!(body, "<h3>{}</h3>\n<table class=\"plain meter ours\">\n", escape(title));
    for (name, value) in figures.iter().filter(|f| f.1 > 0.0) {
        let (name, describe, percent) =
            (escape(name), describe(Axis::Rate, *value), 97.0 * value / most);
        put!(
            body,
            "<tr><th>{name}</th><td class=\"track\"><i \
                style=\"width:{percent:.1}%\"></i></td><td>{describe}</td></tr>\n"
        );
    }
    body.push_str("</table>\n");
}

fn describe(axis: Axis, value: f64) -> String {
    match axis {
        Axis::Size => bytes(value as u64),
        Axis::Nanos => format!("{value:.1} ns"),
        Axis::Threads | Axis::Pages => format!("{value:.0}"),
        Axis::Share => format!("{:.0}%", value * 100.0),
        Axis::Rate => rate_mark(value),
    }
}

/// Bytes a second; nothing has no unit.
fn rate_mark(value: f64) -> String {
    if value < 1.0 {
        "0".to_owned()
    } else {
        rate(value as u64)
    }
}
