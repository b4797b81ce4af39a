//! Tables and paragraphs for a terminal of any width.

/// Columns between two columns of a table.
const GAP: usize = 2;

/// Names are not cut to fewer characters: they would no longer tell rows apart.
const NARROWEST_NAME: usize = 12;

/// A table of names and figures. Names stand at the left and are cut where the terminal is too
/// narrow; figures are never cut: those that do not fit follow in a block of their own, below the
/// same names.
#[derive(Debug, Clone)]
pub struct TextTable {
    names: usize,
    heads: Vec<String>,
    rows: Vec<TextRow>,
}

#[derive(Debug, Clone)]
struct TextRow {
    cells: Vec<String>,
    remarks: Vec<String>,
}

impl TextTable {
    /// A table with these column heads, of which the first `names` are of names.
    #[must_use]
    pub fn new(names: usize, heads: &[&str]) -> Self {
        let heads = heads.iter().map(|head| (*head).to_owned()).collect();
        Self { names, heads, rows: Vec::new() }
    }

    /// One row, a cell for each head. Missing cells are empty and surplus ones left out.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| printable(&cell)).chain(
            // Rows are as long as the heads.
            std::iter::repeat(String::new()),
        );
        let cells = cells.take(self.heads.len()).collect();
        self.rows.push(TextRow { cells, remarks: Vec::new() });
    }

    /// A remark below the last row.
    pub fn remark(&mut self, text: &str) {
        if let Some(row) = self.rows.last_mut() {
            row.remarks.push(printable(text));
        }
    }

    /// The lines, none longer than `columns` where names of twelve characters and one figure fit.
    #[must_use]
    pub fn text(&self, columns: usize) -> String {
        let mut widths: Vec<usize> = (0..self.heads.len()).map(|at| self.width(at)).collect();
        self.cut_names(&mut widths, columns);
        let mut out = String::new();
        for (block, figures) in self.blocks(&widths, columns).into_iter().enumerate() {
            if block > 0 {
                out.push('\n');
            }
            let shown: Vec<usize> = (0..self.names).chain(figures).collect();
            self.line(&self.heads, &shown, &widths, &mut out);
            for row in &self.rows {
                self.line(&row.cells, &shown, &widths, &mut out);
                // A remark is said once, with the first figures.
                for remark in row.remarks.iter().filter(|_| block == 0) {
                    let folded = fold(remark, columns.saturating_sub(4).max(NARROWEST_NAME));
                    for line in folded.lines() {
                        out.push_str(&format!("    {line}\n"));
                    }
                }
            }
        }
        out
    }

    /// What the widest cell of a column takes.
    fn width(&self, at: usize) -> usize {
        let cells = self.rows.iter().map(|row| &row.cells[at]);
        cells.chain([&self.heads[at]]).map(|cell| cell.chars().count()).max().unwrap_or(0)
    }

    /// Makes names narrower, the widest first, until the table fits or they are at their least.
    fn cut_names(&self, widths: &mut [usize], columns: usize) {
        let all = |widths: &[usize]| widths.iter().map(|width| width + GAP).sum::<usize>();
        while all(widths) > columns + GAP {
            let names = widths.iter_mut().take(self.names);
            let Some(widest) = names.max().filter(|width| **width > NARROWEST_NAME) else { break };
            *widest -= 1;
        }
    }

    /// The figures of each block: as many as fit beside the names, at least one.
    fn blocks(&self, widths: &[usize], columns: usize) -> Vec<std::ops::Range<usize>> {
        let names: usize = widths.iter().take(self.names).map(|width| width + GAP).sum();
        let (mut blocks, mut begin, mut used) = (Vec::new(), self.names, names);
        for (at, width) in widths.iter().enumerate().skip(self.names) {
            if at > begin && used + width > columns {
                blocks.push(begin..at);
                (begin, used) = (at, names);
            }
            used += width + GAP;
        }
        blocks.push(begin..widths.len());
        blocks
    }

    fn line(&self, cells: &[String], shown: &[usize], widths: &[usize], out: &mut String) {
        let mut line = String::new();
        for at in shown {
            let width = widths[*at];
            let cell = clip(&cells[*at], width);
            if *at < self.names {
                line.push_str(&format!("{cell:<width$}"));
            } else {
                line.push_str(&format!("{cell:>width$}"));
            }
            line.push_str(&" ".repeat(GAP));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

/// Control characters replaced: what programs and files say must not steer a terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Appends `text`, broken at spaces to `columns`: its first line begins with `first`, others with
/// `rest`.
pub fn wrap(out: &mut String, text: &str, first: &str, rest: &str, columns: usize) {
    let mut line = first.to_owned();
    let mut empty = true;
    for word in text.split_whitespace() {
        if !empty && line.chars().count() + 1 + word.chars().count() > columns {
            out.push_str(&line);
            out.push('\n');
            line = rest.to_owned();
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    out.push_str(&line);
    out.push('\n');
}

/// The text broken at spaces to lines of at most `columns`, later ones indented by two; no line end
/// after the last. Longer words stay whole.
#[must_use]
pub fn fold(text: &str, columns: usize) -> String {
    let mut out = String::new();
    wrap(&mut out, text, "", "  ", columns);
    out.truncate(out.trim_end().len());
    out
}

/// At most `width` characters, the cut marked.
#[must_use]
pub fn clip(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(2)).chain("..".chars()).collect()
}

/// The last `width` characters at most, the cut marked: paths tell more at their end.
#[must_use]
pub fn clip_left(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    "..".chars().chain(text.chars().skip(count - width.saturating_sub(2))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TextTable {
        let mut table = TextTable::new(1, &["policy", "seconds", "ratio"]);
        table.row(["kernel:numa-balancing".to_owned(), "10.25".to_owned(), "1.000".to_owned()]);
        table.row(["a\u{1b}b".to_owned(), "9.5".to_owned(), "0.927".to_owned()]);
        table.remark("it moved no page because none was seen");
        table
    }

    #[test]
    fn a_wide_terminal_shows_names_and_figures_whole() {
        let text = table().text(80);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "policy                 seconds  ratio");
        assert_eq!(lines[1], "kernel:numa-balancing    10.25  1.000");
        assert_eq!(lines[2], "a?b                        9.5  0.927");
        assert_eq!(lines[3], "    it moved no page because none was seen");
    }

    #[test]
    fn names_are_cut_before_figures_are_set_apart() {
        let text = table().text(30);
        assert!(text.contains("kernel:numa-..    10.25  1.000\n"), "{text}");
        assert!(text.contains("    it moved no page because\n      none was seen\n"), "{text}");
    }

    #[test]
    fn a_narrow_terminal_gets_every_figure_in_blocks_of_its_width() {
        let text = table().text(22);
        assert_eq!(text.matches("kernel:num..").count(), 2, "{text}");
        for figure in ["10.25", "9.5", "1.000", "0.927"] {
            assert_eq!(text.matches(figure).count(), 1, "{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 22), "{text}");
    }

    #[test]
    fn paragraphs_are_broken_at_spaces_and_paths_cut_at_the_left() {
        assert_eq!(fold("one two three", 7), "one two\n  three");
        assert_eq!(clip("abcdef", 4), "ab..");
        assert_eq!(clip_left("/a/b/name", 6), "..name");
    }
}
