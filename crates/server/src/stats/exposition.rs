//! Figures as text for Prometheus.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::metric_names::MetricName;
use super::{Figure, FigureKind};
use crate::version::VERSION;

/// The samples of one name, which stand together.
struct Family {
    name: String,
    kind: &'static str,
    help: &'static str,
    samples: String,
}

/// The figures in Prometheus' text format, in their order. A counter's name ends in `_total`; [`MetricName`] has the rest of the name, and
/// the unit. A figure that is not a number becomes a label of a gauge with value 1.
pub fn exposition(figures: &[Figure]) -> String {
    let mut families: Vec<Family> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for figure in figures {
        let MetricName { family, mut labels, help, divisor } = MetricName::of(figure.name);
        let (ending, kind) = match figure.kind {
            FigureKind::Counter => ("_total", "counter"),
            FigureKind::Gauge => ("", "gauge"),
            FigureKind::Text | FigureKind::Build => ("_info", "gauge"),
        };
        let value = match (figure.kind, figure.value.parse::<u64>()) {
            (FigureKind::Build, _) => {
                labels.extend([("version", VERSION.to_owned()), (figure.name, figure.value.clone())]);
                "1".to_owned()
            }
            (FigureKind::Text, _) => {
                labels.push((figure.name, figure.value.clone()));
                "1".to_owned()
            }
            (_, Ok(number)) if divisor != 1.0 => (number as f64 / divisor).to_string(),
            _ => figure.value.clone(),
        };
        let name = format!("tapetum_{family}{ending}");
        let sample = format!("{name}{} {value}\n", braced(&labels));
        let place = *places.entry(name.clone()).or_insert_with(|| {
            let help = help.unwrap_or(figure.help);
            families.push(Family { name, kind, help, samples: String::new() });
            families.len() - 1
        });
        families[place].samples.push_str(&sample);
    }
    let mut out = String::new();
    for Family { name, kind, help, samples } in &families {
        family(&mut out, name, kind, help);
        out.push_str(samples);
    }
    out
}

fn braced(labels: &[(&'static str, String)]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={}", label(value))).collect();
    format!("{{{}}}", labels.join(","))
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
            figure("udp_dropped_rate", FigureKind::Counter, "3"),
            figure("waited_us", FigureKind::Counter, "1500"),
            figure("cpu_host", FigureKind::Counter, "0.25"),
            figure("udp_dropped_port", FigureKind::Counter, "4"),
            figure("version", FigureKind::Text, "a\"b\\"),
        ];
        let expected = "# HELP tapetum_items_total What it is.\n# TYPE tapetum_items_total counter\n\
                        tapetum_items_total 7\n\
                        # HELP tapetum_threads What it is.\n# TYPE tapetum_threads gauge\ntapetum_threads 2\n\
                        # HELP tapetum_udp_dropped_total Datagrams and requests in datagrams that were not answered, by why.\n\
                        # TYPE tapetum_udp_dropped_total counter\n\
                        tapetum_udp_dropped_total{reason=\"rate\"} 3\ntapetum_udp_dropped_total{reason=\"port\"} 4\n\
                        # HELP tapetum_waited_seconds_total What it is.\n# TYPE tapetum_waited_seconds_total counter\n\
                        tapetum_waited_seconds_total 0.0015\n\
                        # HELP tapetum_cpu_host_seconds_total What it is.\n# TYPE tapetum_cpu_host_seconds_total counter\n\
                        tapetum_cpu_host_seconds_total 0.25\n\
                        # HELP tapetum_version_info What it is.\n# TYPE tapetum_version_info gauge\n\
                        tapetum_version_info{version=\"a\\\"b\\\\\"} 1\n";
        assert_eq!(exposition(&figures), expected);
    }
}
