//! Figures for documents: one SVG file each, with its own colours for light and dark pages.

use crate::chart::ticks;
use crate::markup::{brief, put};

/// Units of a figure's width; a document shows it as wide as it likes.
const WIDE: f64 = 760.0;
/// Space for labels to the left, pixels.
const LEFT: f64 = 64.0;
/// Height of the part with bars.
const BARS: f64 = 220.0;
/// Space above the drawing for title and legend.
const HEAD: f64 = 64.0;
/// Size of a cell of a map.
const CELL: (f64, f64) = (58.0, 34.0);
/// Names of contenders or series at most: as many as there are colours.
pub const MOST_SERIES: usize = 4;

const STYLE: &str = "<style>
text { font: 13px system-ui, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif; }
text { fill: #1d2329; }
.paper { fill: #ffffff; } .soft { fill: #5d6873; } .title { font-size: 15px; font-weight: 600; }
.grid { stroke: #e2e0d9; } .axis { stroke: #5d6873; } .none { fill: #e2e0d9; }
.s0 { fill: #1f6fb2; }
.s1 { fill: #d9822b; } .s2 { fill: #4b9b6e; } .s3 { fill: #7a5ba6; } .in { fill: #ffffff; }
@media (prefers-color-scheme: dark) {
text { fill: #e7eaed; } .paper { fill: #1b2026; } .soft { fill: #9aa6b1; }
.grid { stroke: #2d343c; }
.none { fill: #2d343c; } .s0 { fill: #5aa9e6; } .s1 { fill: #f0a35a; } .s2 { fill: #7ac79b; }
.s3 { fill: #b095dd; } .in { fill: #14181c; }
}
</style>
";

/// Bars of one colour, one for each category.
#[derive(Debug, Clone, PartialEq)]
pub struct BarSeries {
    /// Its name.
    pub name: String,
    /// A value for each category; one that is no number has no bar.
    pub values: Vec<f64>,
}

/// Who won a case, and by how much.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CaseWinner {
    /// Index of the contender.
    pub contender: usize,
    /// Time of the second best as a multiple of the winner's.
    pub factor: f64,
}

/// A map of cases: rows and columns, with the winner of each.
#[derive(Debug, Clone, PartialEq)]
pub struct WinnerPanel {
    /// Above it.
    pub title: String,
    /// Names of the rows.
    pub rows: Vec<String>,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// By row, then column; `None`: not run.
    pub cells: Vec<Vec<Option<CaseWinner>>>,
}

/// A figure of grouped bars, as an SVG file. `unit` is written after each value of the axis.
#[must_use]
pub fn bar_figure(title: &str, categories: &[String], series: &[BarSeries], unit: &str) -> String {
    let series = &series[..series.len().min(MOST_SERIES)];
    let values = || series.iter().flat_map(|one| &one.values).filter(|value| value.is_finite());
    let most = values().copied().fold(0.0, f64::max);
    let least = values().copied().fold(0.0, f64::min);
    let top = if most - least > 0.0 { most + 0.05 * (most - least) } else { 1.0 };
    let y = |value: f64| HEAD + BARS * (top - value) / (top - least);
    let mut svg = begin(title, HEAD + BARS + 44.0);
    legend(&mut svg, series.iter().map(|one| one.name.as_str()));
    let below: Vec<f64> = ticks(-least, 2).into_iter().skip(1).map(|value| -value).collect();
    for value in ticks(top, 5).into_iter().chain(below) {
        put!(
            &mut svg,
            "<path class=\"grid\" d=\"M{LEFT},{:.1}H{WIDE}\"/><text class=\"soft\" x=\"{:.1}\" \
             y=\"{:.1}\" text-anchor=\"end\">{}{}</text>\n",
            y(value),
            LEFT - 6.0,
            y(value) + 4.0,
            (value * 100.0).round() / 100.0,
            brief(unit, 8)
        );
    }
    let group = (WIDE - LEFT) / categories.len().max(1) as f64;
    let width = 0.76 * group / series.len().max(1) as f64;
    for (at, category) in categories.iter().enumerate() {
        let begin = LEFT + group * (at as f64 + 0.12);
        for (index, one) in series.iter().enumerate() {
            let Some(value) = one.values.get(at).filter(|value| value.is_finite()) else {
                continue;
            };
            let (upper, lower) = (y(value.max(0.0)), y(value.min(0.0)));
            put!(
                &mut svg,
                "<rect class=\"s{index}\" x=\"{:.1}\" y=\"{upper:.1}\" width=\"{:.1}\" \
                 height=\"{:.1}\"><title>{}, {}: {value:.2}{}</title></rect>\n",
                begin + width * index as f64,
                width - 1.0,
                (lower - upper).max(0.5),
                brief(&one.name, 60),
                brief(category, 40),
                brief(unit, 8)
            );
        }
        put!(
            &mut svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
            begin + 0.38 * group,
            HEAD + BARS + 20.0,
            brief(category, 16)
        );
    }
    put!(&mut svg, "<path class=\"axis\" d=\"M{LEFT},{:.1}H{WIDE}\"/>\n</svg>\n", y(0.0));
    svg
}

/// A figure of who wins where, as an SVG file. `axis` says what columns are.
#[must_use]
pub fn winner_figure(
    title: &str,
    axis: &str,
    contenders: &[String],
    panels: &[WinnerPanel],
) -> String {
    let rows = panels.iter().map(|panel| panel.rows.len()).max().unwrap_or(0) as f64;
    let tall = rows * CELL.1 + 62.0;
    let lines = panels.len().div_ceil(2) as f64;
    let mut svg = begin(title, HEAD + lines * tall);
    legend(&mut svg, contenders.iter().take(MOST_SERIES).map(String::as_str));
    for (at, panel) in panels.iter().enumerate() {
        let left = 20.0 + WIDE / 2.0 * (at % 2) as f64;
        let top = HEAD + 16.0 + tall * (at / 2) as f64;
        winner_panel(&mut svg, panel, axis, (left, top));
    }
    svg.push_str("</svg>\n");
    svg
}

fn winner_panel(svg: &mut String, panel: &WinnerPanel, axis: &str, (left, top): (f64, f64)) {
    put!(
        svg,
        "<text class=\"title\" x=\"{left}\" y=\"{top}\">{}</text>\n",
        brief(&panel.title, 40)
    );
    let (begin, first) = (left + 72.0, top + 12.0);
    for (row, name) in panel.rows.iter().enumerate() {
        let y = first + row as f64 * CELL.1;
        put!(
            svg,
            "<text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            begin - 8.0,
            y + CELL.1 / 2.0 + 4.0,
            brief(name, 10)
        );
        for (column, cell) in panel.cells.get(row).into_iter().flatten().enumerate() {
            let x = begin + column as f64 * CELL.0;
            let class =
                cell.map_or("none".to_owned(), |c| format!("s{}", c.contender % MOST_SERIES));
            put!(
                svg,
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" \
                 height=\"{:.1}\" rx=\"3\"/>\n",
                CELL.0 - 3.0,
                CELL.1 - 3.0
            );
            if let Some(cell) = cell {
                put!(
                    svg,
                    "<text class=\"in\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
                    x + (CELL.0 - 3.0) / 2.0,
                    y + CELL.1 / 2.0 + 3.0,
                    times(cell.factor)
                );
            }
        }
    }
    let y = first + panel.rows.len() as f64 * CELL.1 + 12.0;
    for (column, name) in panel.columns.iter().enumerate() {
        let x = begin + column as f64 * CELL.0 + (CELL.0 - 3.0) / 2.0;
        put!(
            svg,
            "<text class=\"soft\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{}</text>\n",
            brief(name, 8)
        );
    }
    put!(
        svg,
        "<text class=\"soft\" x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"end\">{}</text>\n",
        begin - 8.0,
        brief(axis, 10)
    );
}

/// `1.2x`, `35x`.
fn times(factor: f64) -> String {
    match factor {
        f if !f.is_finite() => "alone".to_owned(),
        f if f < 9.95 => format!("{f:.1}x"),
        f => format!("{f:.0}x"),
    }
}

fn begin(title: &str, height: f64) -> String {
    let name = brief(title, 120);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDE} {height}\" role=\"img\" \
         aria-label=\"{name}\">\n{STYLE}<rect class=\"paper\" width=\"{WIDE}\" \
         height=\"{height}\"/>\n<text class=\"title\" x=\"20\" y=\"22\">{name}</text>\n"
    )
}

fn legend<'a>(svg: &mut String, names: impl Iterator<Item = &'a str>) {
    let mut x = 20.0;
    for (index, name) in names.enumerate() {
        put!(
            svg,
            "<rect class=\"s{index}\" x=\"{x:.1}\" y=\"35\" width=\"12\" height=\"12\" rx=\"2\"/>\
             <text class=\"soft\" x=\"{:.1}\" y=\"46\">{}</text>\n",
            x + 18.0,
            brief(name, 60)
        );
        x += 42.0 + 7.0 * name.chars().count() as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_heights_by_value_and_nothing_gets_out() {
        let series = [
            BarSeries { name: "<saved>".into(), values: vec![10.0, -5.0, f64::NAN] },
            BarSeries { name: "speedup".into(), values: vec![20.0, 0.0] },
        ];
        let categories = ["6", "7", "8"].map(str::to_owned);
        let svg = bar_figure("Figure & more", &categories, &series, "%");
        assert!(svg.contains("&lt;saved&gt;, 7: -5.00%") && svg.contains("Figure &amp; more"));
        assert!(!svg.contains("NaN") && !svg.contains("<saved>"));
        // Two bars of legend, one of paper, four of values.
        assert_eq!(svg.matches("<rect").count(), 7);
        let height = |title: &str| -> f64 {
            let before = svg.split(title).next().unwrap_or_default();
            let height = before.rsplit("height=\"").next().unwrap_or_default();
            height.split('"').next().and_then(|text| text.parse().ok()).unwrap_or(0.0)
        };
        let (ten, twenty) = (height("&lt;saved&gt;, 6"), height("speedup, 6"));
        assert!((twenty / ten - 2.0).abs() < 0.01, "{twenty} {ten}");
        assert!(bar_figure("empty", &[], &[], "").ends_with("</svg>\n"));
    }

    #[test]
    fn winners_have_their_colour_and_factor() {
        let cell = |contender, factor| Some(CaseWinner { contender, factor });
        let panel = WinnerPanel {
            title: "bfs".into(),
            rows: vec!["grid".into(), "rmat".into()],
            columns: vec!["8".into(), "10".into()],
            cells: vec![vec![cell(0, 1.25), cell(2, 34.6)], vec![None, cell(1, f64::INFINITY)]],
        };
        let names = ["pages", "accesses", "threads"].map(str::to_owned);
        let svg = winner_figure("Who wins", "scale", &names, &[panel]);
        assert!(svg.contains(">1.2x<") && svg.contains(">35x<") && svg.contains(">alone<"));
        assert_eq!(svg.matches("class=\"none\"").count(), 1);
        // A cell and an entry of the legend each.
        assert!([0, 1, 2].iter().all(|n| svg.matches(&format!("class=\"s{n}\"")).count() == 2));
    }
}
