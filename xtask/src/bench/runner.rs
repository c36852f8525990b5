//! Runs a [`Contest`]: loads the contenders, finds the fastest way to ask each, runs these in turns, and checks the claims.
//!
//! Every contest takes `--items`, `--value`, `--random-percent`, `--memory`, `--tier`, `--capacity`, `--overwrites`, `--rounds`,
//! `--mixes`, `--distribution`, `--sync`, `--contenders` and `--keep`.

use super::arena::{Arena, Entrant};
use super::contest::{Claim, Contest, Figure, Over, Stage, Tier, Trial};
use super::shape::Shape;
use crate::Failure;
use crate::arguments::Arguments;
use crate::results::bars::{Bar, BarSet, Bars};
use crate::results::chart::Scale;
use crate::results::outcome::{Outcome, Reach};
use crate::results::picture::Picture;
use crate::results::series::Series;
use crate::results::spread::Spread;

const SWEEP_ROUNDS: u64 = 3;
const DISTRIBUTIONS: [&str; 3] = ["uniform", "zipfian", "latest"];

pub fn run(arguments: &Arguments, contest: &Contest) -> Result<(), Failure> {
    let shape = shape(arguments, contest)?;
    let rounds = arguments.number("rounds", contest.rounds)?;
    let overwrites = arguments.number("overwrites", contest.overwrites)?;
    let stages = stages(arguments, (contest.stages)(&shape))?;
    let names = [contest.contenders, contest.by_name].concat();
    let mut arena = Arena::open(arguments, contest.name, &shape, &names, contest.contenders)?;
    let synced = if stages.iter().all(|stage| stage.sync) { ", each write synced" } else { "" };
    let about = format!("{}, {} items of {} bytes{synced}", contest.about, shape.items, shape.value_bytes);
    let mut outcome = Outcome::new(arguments, contest.name, about);
    arena.load(overwrites)?;
    let mut sets = Vec::new();
    for stage in &stages {
        arena.set_server_threads(stage.server_threads);
        arena.start_all(stage.sync)?;
        for trial in &stage.trials {
            let series = run_trial(&mut arena, stage, trial, rounds, &mut outcome)?;
            sets.extend(contest.pictured.map(|figure| bars(&trial.name, &series, figure)));
            outcome.series(series);
        }
        arena.end_all()?;
    }
    if let Some((x_label, _)) = contest.pictured {
        let (title, x_label) = (contest.about.to_owned(), x_label.to_owned());
        let bars = Bars { title, x_label, scale: Scale::Linear, sets };
        outcome.picture(Picture::of_bars(contest.name, bars));
    }
    outcome.end()
}

fn bars(name: &str, series: &[Series], (_, figure): Figure) -> BarSet {
    let label = |series: &Series| series.label.rsplit(": ").next().unwrap_or_default().to_owned();
    let bars = series.iter().map(|series| Bar { label: label(series), value: series.spread(figure) });
    BarSet { name: name.to_owned(), bars: bars.collect() }
}

fn shape(arguments: &Arguments, contest: &Contest) -> Result<Shape, Failure> {
    let shape = Shape::parse(arguments, contest.items, contest.value_bytes, contest.room)?;
    Ok(match contest.tier {
        Tier::None => shape,
        Tier::Half => Shape { tier_bytes: arguments.size("tier", shape.memory_bytes / 2)?, ..shape },
        Tier::All => shape.with_tier(),
    })
}

/// Removes the stages, trials and entrants that the options exclude.
fn stages(arguments: &Arguments, mut stages: Vec<Stage>) -> Result<Vec<Stage>, Failure> {
    let mixes = arguments.text("mixes").map(str::to_owned);
    let distribution = distribution(arguments)?;
    match sync(arguments)? {
        Some(sync) if stages.iter().any(|stage| stage.sync == sync) => stages.retain(|stage| stage.sync == sync),
        Some(sync) => stages.iter_mut().for_each(|stage| stage.sync = sync),
        None => {}
    }
    for stage in &mut stages {
        if let Some(mixes) = &mixes {
            stage.trials.retain(|trial| mixes.contains(trial.load.mix));
        }
        for trial in stage.trials.iter_mut().filter(|trial| !trial.name.is_empty()) {
            if let Some(distribution) = distribution {
                trial.name = format!("{}, {distribution}", trial.load.mix.to_uppercase());
                trial.load.distribution = distribution;
            }
        }
    }
    match stages.iter().all(|stage| stage.trials.is_empty()) {
        true => Err("--mixes names no mix of this row".into()),
        false => Ok(stages),
    }
}

fn distribution(arguments: &Arguments) -> Result<Option<&'static str>, Failure> {
    let Some(text) = arguments.text("distribution") else { return Ok(None) };
    let known = DISTRIBUTIONS.into_iter().find(|name| *name == text);
    known
        .map(Some)
        .ok_or_else(|| format!("there is no distribution {text}; there are {}", DISTRIBUTIONS.join(", ")).into())
}

/// Whether each write must be durable before it is answered, according to `--sync`, if given.
fn sync(arguments: &Arguments) -> Result<Option<bool>, Failure> {
    match arguments.text("sync") {
        None => Ok(None),
        Some("no") => Ok(Some(false)),
        Some("always") => Ok(Some(true)),
        Some(other) => Err(format!("--sync takes no or always, not {other}").into()),
    }
}

fn run_trial(
    arena: &mut Arena,
    stage: &Stage,
    trial: &Trial,
    rounds: u64,
    outcome: &mut Outcome,
) -> Result<Vec<Series>, Failure> {
    if trial.removed > 0 {
        arena.remove(0, trial.removed)?;
    }
    let sweep = trial.load.clone().lasting(trial.sweep);
    let entrants = arena.best_of(trial.groups.clone(), &sweep, SWEEP_ROUNDS)?;
    if !trial.warm_up.is_zero() {
        arena.rounds(&entrants, &trial.load.clone().lasting(trial.warm_up), 1)?;
    }
    let mut series = arena.rounds(&entrants, &trial.load, rounds)?;
    check_agreed(trial.agreed, &series)?;
    let mut names = vec![stage.name, &trial.name];
    names.retain(|name| !name.is_empty());
    let found = Found { entrants: &entrants, series: &series };
    for claim in &trial.claims {
        found.hold(claim, &names, outcome);
    }
    if !names.is_empty() {
        series.iter_mut().for_each(|series| series.label = format!("{}: {}", names.join(", "), series.label));
    }
    Ok(series)
}

/// Checks that these counters are equal in all turns of all entrants.
fn check_agreed(counters: &[&'static str], series: &[Series]) -> Result<(), Failure> {
    for counter in counters {
        let mut turns = series
            .iter()
            .flat_map(|series| series.reports.iter().map(|report| (&series.label, report.latencies.counted(counter))));
        let Some((_, first)) = turns.next() else { continue };
        if let Some((label, other)) = turns.find(|(_, other)| *other != first) {
            return Err(format!("{label} found {other} {counter}, and the first {first}").into());
        }
    }
    Ok(())
}

/// The fastest entrants of each group, and their results.
struct Found<'a> {
    entrants: &'a [Entrant],
    series: &'a [Series],
}

impl Found<'_> {
    fn series(&self, name: &str) -> Option<&Series> {
        let place = self.entrants.iter().position(|entrant| entrant.is_named(name));
        place.map(|place| &self.series[place])
    }

    /// The name of its contender, with its way if the contender has several.
    fn name(&self, entrant: &Entrant) -> String {
        let alike = self.entrants.iter().filter(|other| other.contender == entrant.contender).count();
        if alike > 1 { format!("{} {}", entrant.contender, entrant.api) } else { entrant.contender.to_owned() }
    }

    /// Checks a claim, if all entrants that it names take part.
    fn hold(&self, claim: &Claim, names: &[&str], outcome: &mut Outcome) {
        let Some(own) = self.series(claim.of) else { return };
        let (what, figure) = claim.figure;
        let high = |(other, least)| self.series(other).is_some_and(|other| own.ratio(other, figure).median >= least);
        let reach = if claim.unless.is_some_and(high) { Reach::Reported } else { claim.reach };
        let subject = [names, &[claim.of]].concat().join(", ");
        let mut hold = |over: &str, spread| outcome.hold(format!("{subject}: {what}{over}"), spread, reach);
        match claim.over {
            Over::Nothing => hold("", own.spread(figure)),
            Over::One(name) => {
                if let Some(other) = self.series(name) {
                    hold(&format!(" ÷ {name}"), own.ratio(other, figure));
                }
            }
            Over::Smaller([one, other]) => {
                if let (Some(first), Some(second)) = (self.series(one), self.series(other)) {
                    let smaller = first.reports.iter().zip(&second.reports).map(|(a, b)| figure(a).min(figure(b)));
                    let ratios = own.reports.iter().zip(smaller).map(|(mine, smaller)| figure(mine) / smaller);
                    hold(&format!(" ÷ the smaller of {one} and {other}"), Spread::of(ratios));
                }
            }
            Over::Each => {
                let others = self.entrants.iter().zip(self.series).filter(|(entrant, _)| !entrant.is_named(claim.of));
                for (entrant, other) in others {
                    hold(&format!(" ÷ {}", self.name(entrant)), own.ratio(other, figure));
                }
            }
        }
    }
}
