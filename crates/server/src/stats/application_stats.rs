//! Figures of each application that has a share of the drive.

use std::fmt::Write as _;

use tapetum_drive::engine::ApplicationSnapshot;

use crate::stats::exposition::{family, label};

/// A figure of each application: its name, its type, what it is.
type ApplicationFigure = (&'static str, &'static str, &'static str, fn(&ApplicationSnapshot) -> f64);

const FIGURES: [ApplicationFigure; 3] = [
    ("tapetum_application_weight", "gauge", "Weight of each application at the drive", |of| of.weight.into()),
    ("tapetum_application_pipelines_total", "counter", "Pipelines of each application that have ended", |of| {
        of.pipelines as f64
    }),
    ("tapetum_application_unit_seconds_total", "counter", "Time in which programs ran for each application", |of| {
        of.unit_us as f64 / 1e6
    }),
];

/// For Prometheus: samples for each application.
pub fn append(page: &mut String, applications: &[ApplicationSnapshot]) {
    if applications.is_empty() {
        return;
    }
    for (name, kind, help, value) in FIGURES {
        family(page, name, kind, help);
        for application in applications {
            // Writing to a string cannot fail.
            let _ = writeln!(page, "{name}{{application={}}} {}", label(&application.name), value(application));
        }
    }
}
