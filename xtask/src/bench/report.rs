//! The tables, on the terminal and in `docs/benchmarks.md`.

use std::{fs, path::Path};

use anyhow::{Context, Result};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks.md");

const INTRODUCTION: &str = "# Benchmarks\n\n\
    Measured by the commands that stand above each table. The programs are measured in the same run and are\n\
    started anew for every round; figures are the median of the rounds, with the smallest and the largest in brackets.\n";

/// One bench's part of the page.
pub(crate) struct Section {
    /// What was measured; also what the section is found by when it is rewritten.
    pub title: &'static str,
    /// The command that makes it.
    pub command: String,
    /// What a reader must know to judge the figures.
    pub circumstances: String,
    /// The first row is the header.
    pub rows: Vec<Vec<String>>,
}

impl Section {
    /// Prints the table and writes it into the page.
    pub(crate) fn publish(&self) -> Result<()> {
        let table = self.table();
        println!("\n{table}");
        let page = fs::read_to_string(FILE).unwrap_or_else(|_| INTRODUCTION.to_owned());
        let page = replace_section(&page, self.title, &self.markdown(&table));
        fs::write(FILE, page).with_context(|| format!("cannot write {}", Path::new(FILE).display()))?;
        println!("Written to docs/benchmarks.md.");
        Ok(())
    }

    fn markdown(&self, table: &str) -> String {
        format!("## {}\n\n```sh\n{}\n```\n\n{}\n\n{table}", self.title, self.command, self.circumstances)
    }

    fn table(&self) -> String {
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let line = |row: &Vec<String>| {
            let cells = row.iter().enumerate().map(|(column, cell)| format!("{cell:<width$}", width = width(column)));
            format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
        };
        let mut rows = self.rows.iter();
        let header = rows.next().map(line).unwrap_or_default();
        let columns = self.rows.first().map_or(0, Vec::len);
        let rule = (0..columns).map(|column| "-".repeat(width(column) + 2)).collect::<Vec<_>>().join("|");
        header + "|" + &rule + "|\n" + &rows.map(line).collect::<String>()
    }
}

fn replace_section(page: &str, title: &str, section: &str) -> String {
    let heading = format!("## {title}\n");
    let Some(start) = page.find(&heading) else {
        return format!("{}\n\n{section}", page.trim_end());
    };
    let after = start + heading.len();
    let end = page[after..].find("\n## ").map_or(page.len(), |next| after + next + 1);
    let rest = &page[end..];
    let separator = if rest.is_empty() { "" } else { "\n" };
    format!("{}{section}{separator}{rest}", &page[..start])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_rewritten_in_place_and_the_others_stay() {
        let page = "# Benchmarks\n\n## One\n\nold\n\n## Two\n\nkept\n";
        assert_eq!(
            replace_section(page, "One", "## One\n\nnew\n"),
            "# Benchmarks\n\n## One\n\nnew\n\n## Two\n\nkept\n"
        );
        assert_eq!(replace_section(page, "Two", "## Two\n\nnew\n"), "# Benchmarks\n\n## One\n\nold\n\n## Two\n\nnew\n");
        assert!(replace_section(page, "Three", "## Three\n").ends_with("kept\n\n## Three\n"));
    }
}
