//! Two applications that always have pipelines, K1-K2-K3 and K3-K2-K4, without faults: their shares of unit time.

use super::pipelines::{BALKS, DrawnPipeline, program_named};
use super::world::{DeviceWorld, SUB_BUFFER_BYTES};
use super::{DeviceSetup, all_programs};
use tapetum_drive::arbiter::UnitCount;
use tapetum_drive::engine::EngineOptions;
use tapetum_drive::{ProgramId, SplitMix64};

const STAGES: [[usize; 3]; 2] = [[0, 1, 2], [2, 1, 3]];
const AT_ONCE: usize = 8;
/// Some hundred tasks of K2 run in this time.
const TIME_US: u64 = 1_200_000;
/// An application with pipelines gets a task started at least this often.
const SERVED_EVERY_US: u64 = 30_000;
/// The most that a share may differ from the one by weight.
const DISTANCE_MAX: f64 = 0.1;

pub fn world(setup: &DeviceSetup) -> DeviceWorld {
    let mut random = SplitMix64::new(setup.seed);
    let programs = all_programs();
    let units = 1 + random.below(2) as u16;
    let options = EngineOptions {
        units: BALKS.map(|name| UnitCount { program: program_named(&programs, name), units }).into(),
        weights: [0, 1].map(|_| 1 + random.below(4) as u32).into(),
        sub_buffers: 64,
        sub_buffer_bytes: SUB_BUFFER_BYTES,
        pipelines_max: AT_ONCE,
        ..EngineOptions::default()
    };
    let mut world = DeviceWorld::new(setup, options, 4);
    world.takes_us = takes_us;
    world
}

/// K2 takes longest, so both applications wait for it.
fn takes_us(program: ProgramId) -> (u64, u64) {
    match usize::from(program.0).checked_sub(all_programs().len() - BALKS.len()) {
        Some(1) => (200, 400),
        Some(place) if place < BALKS.len() => (50, 100),
        _ => (1, 3),
    }
}

pub fn run(world: &mut DeviceWorld) -> Result<(), String> {
    while world.now_us < TIME_US {
        for (application, kernels) in (0..).zip(STAGES) {
            while world.in_flight_of(application) < AT_ONCE {
                let drawn = DrawnPipeline::of_kernels(&kernels, &world.bytes.programs);
                if !world.submit(drawn, application, None)? {
                    return Err(format!("application {application} is refused"));
                }
            }
        }
        world.step()?;
        for (application, last_us) in world.last_taken_us.iter().enumerate() {
            if last_us + SERVED_EVERY_US < world.now_us {
                return Err(format!("application {application} was not served from {last_us} to {} µs", world.now_us));
            }
        }
    }
    let weights: Vec<f64> = world.weights().iter().map(|weight| f64::from(*weight)).collect();
    let (served_us, sum) = (world.served_us.iter().sum::<u64>() as f64, weights.iter().sum::<f64>());
    for (application, (own_us, weight)) in world.served_us.iter().zip(&weights).enumerate() {
        let distance = *own_us as f64 / served_us / (weight / sum) - 1.0;
        if distance.abs() > DISTANCE_MAX {
            return Err(format!(
                "application {application} with weight {weight} of {sum} has {own_us} µs of {served_us}"
            ));
        }
    }
    world.settle()
}
