//! Bar charts as SVG, readable on light and on dark pages.

use std::{fmt::Write, fs};

use anyhow::{Context, Result};

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");

const WIDTH: f64 = 760.0;
const LABELS: f64 = 330.0;
/// What is left for the figure beside the longest bar.
const FIGURES: f64 = 70.0;
const BAR: f64 = 18.0;
const STEP: f64 = 26.0;
const MARGIN: f64 = 12.0;

/// A mark is grey unless it is ours, so that the eye finds it in any company.
const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-size:15px;font-weight:600}\
    .group{font-weight:600}.bar{fill:#afb8c1}.ours{fill:#1f883d}\
    @media (prefers-color-scheme:dark){text{fill:#e6edf3}.bar{fill:#6e7681}.ours{fill:#3fb950}}";

/// Horizontal bars, grouped.
pub(crate) struct Chart {
    pub title: &'static str,
    /// Those of a group stand together.
    pub bars: Vec<Bar>,
}

/// One figure.
pub(crate) struct Bar {
    pub group: String,
    pub label: String,
    pub value: f64,
    /// Whether it is the operator's.
    pub ours: bool,
}

impl Chart {
    /// Writes it beside the page.
    pub(crate) fn publish(&self, file: &str) -> Result<()> {
        let path = format!("{DIRECTORY}/{file}");
        fs::write(&path, self.svg()?).with_context(|| format!("cannot write {path}"))
    }

    fn svg(&self) -> Result<String> {
        let most = self.bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
        let scale = (WIDTH - LABELS - FIGURES - MARGIN) / most;
        let (mut body, mut y, mut group) = (String::new(), MARGIN + STEP, None);
        for bar in &self.bars {
            if group != Some(&bar.group) {
                writeln!(body, r#"<text class="group" x="{MARGIN}" y="{}">{}</text>"#, y + 19.0, escape(&bar.group))?;
                (group, y) = (Some(&bar.group), y + STEP);
            }
            let (class, width, middle) = (if bar.ours { "ours" } else { "bar" }, bar.value * scale, y + 14.0);
            let label = escape(&bar.label);
            writeln!(body, r#"<text x="{}" y="{middle}" text-anchor="end">{label}</text>"#, LABELS - 8.0)?;
            writeln!(body, r#"<rect class="{class}" x="{LABELS}" y="{y}" width="{width:.1}" height="{BAR}" rx="2"/>"#)?;
            writeln!(body, r#"<text x="{:.1}" y="{middle}">{:.0}</text>"#, LABELS + width + 6.0, bar.value)?;
            y += STEP;
        }
        let (title, height) = (escape(self.title), y + MARGIN);
        Ok(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
             role=\"img\" aria-label=\"{title}\">\n<style>{STYLE}</style>\n\
             <text class=\"title\" x=\"{MARGIN}\" y=\"{}\">{title}</text>\n{body}</svg>\n",
            MARGIN + 12.0
        ))
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_figures_say_and_stand_under_their_group() {
        let bar = |group: &str, value, ours| Bar { group: group.into(), label: "a & b".into(), value, ours };
        let chart = Chart { title: "Claims", bars: vec![bar("few", 100.0, true), bar("many", 50.0, false)] };
        let svg = chart.svg().unwrap();
        assert_eq!(svg.matches(">a &amp; b</text>").count(), 2);
        assert_eq!(svg.matches(r#"class="group""#).count(), 2);
        assert!(svg.contains(r#"class="ours" x="330" y="64" width="348.0""#), "{svg}");
        assert!(svg.contains(r#"class="bar" x="330" y="116" width="174.0""#), "{svg}");
    }
}
