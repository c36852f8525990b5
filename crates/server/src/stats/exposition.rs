//! Figures as text for Prometheus.

use std::fmt::Write as _;

use super::{Figure, FigureKind};
use crate::version::VERSION;

/// The figures in Prometheus' text format. As is the custom there, a counter's name ends in `_total`, and units are seconds and bytes. A
/// figure that is not a number becomes a label of a gauge with value 1.
pub fn exposition(figures: &[Figure]) -> String {
    let mut out = String::new();
    for Figure { name, kind, help, value } in figures {
        let (name, value) = in_base_units(name, value);
        let (name, word, sample) = match kind {
            FigureKind::Counter => {
                (format!("{}_total", name.strip_prefix("total_").unwrap_or(&name)), "counter", value.clone())
            }
            FigureKind::Gauge => (name, "gauge", value.clone()),
            FigureKind::Text | FigureKind::Build => (format!("{name}_info"), "gauge", String::new()),
        };
        family(&mut out, &format!("tapetum_{name}"), word, help);
        // Writing to a string cannot fail.
        let _ = match kind {
            FigureKind::Text => {
                writeln!(out, "tapetum_{name}{{{}={}}} 1", name.trim_end_matches("_info"), label(&value))
            }
            FigureKind::Build => {
                writeln!(out, "tapetum_{name}{{version={},build={}}} 1", label(VERSION), label(&value))
            }
            FigureKind::Counter | FigureKind::Gauge => writeln!(out, "tapetum_{name} {sample}"),
        };
    }
    out
}

/// Figures in seconds whose names do not say so; some are memcached's.
const IN_SECONDS: [&str; 6] = ["uptime", "time", "rusage_user", "rusage_system", "cpu_host", "cpu_drive"];

/// A figure's name and value, in the units of Prometheus: seconds and bytes.
fn in_base_units(name: &str, value: &str) -> (String, String) {
    if IN_SECONDS.contains(&name) {
        return (format!("{name}_seconds"), value.into());
    }
    for (unit, base_unit, of_base) in [("_us", "_seconds", 1e6), ("_bits", "_bytes", 8.0)] {
        if let (Some(name), Ok(number)) = (name.strip_suffix(unit), value.parse::<u64>()) {
            return (format!("{name}{base_unit}"), (number as f64 / of_base).to_string());
        }
    }
    (name.into(), value.into())
}

/// Begins a family of samples.
pub fn family(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(out, "# HELP {name} {help}.\n# TYPE {name} {kind}\n");
}

pub fn label(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_form() {
        let figure = |name, kind, value: &str| Figure { name, kind, help: "What it is", value: value.into() };
        let figures = [
            figure("total_items", FigureKind::Counter, "7"),
            figure("threads", FigureKind::Gauge, "2"),
            figure("waited_us", FigureKind::Counter, "1500"),
            figure("cpu_host", FigureKind::Counter, "0.25"),
            figure("version", FigureKind::Text, "a\"b\\"),
        ];
        let expected = "# HELP tapetum_items_total What it is.\n# TYPE tapetum_items_total counter\n\
                        tapetum_items_total 7\n\
                        # HELP tapetum_threads What it is.\n# TYPE tapetum_threads gauge\ntapetum_threads 2\n\
                        # HELP tapetum_waited_seconds_total What it is.\n# TYPE tapetum_waited_seconds_total counter\n\
                        tapetum_waited_seconds_total 0.0015\n\
                        # HELP tapetum_cpu_host_seconds_total What it is.\n# TYPE tapetum_cpu_host_seconds_total counter\n\
                        tapetum_cpu_host_seconds_total 0.25\n\
                        # HELP tapetum_version_info What it is.\n# TYPE tapetum_version_info gauge\n\
                        tapetum_version_info{version=\"a\\\"b\\\\\"} 1\n";
        assert_eq!(exposition(&figures), expected);
    }
}
