//! Power cuts: the server runs on a file system of our own that keeps what was not synced in memory. Under load the power is
//! cut, which drops or reorders that, sector by sector; the server is killed, started again on what survived, and every
//! acknowledged write must be there. Clients, values and model are those of the kill test.
//!
//! The test is tested: on a file system that forgets syncs, the same must fail.

mod mount;
mod volatile;

use std::path::Path;

use self::mount::Mount;
use self::volatile::Cut;
use crate::Failure;
use crate::arguments::Arguments;
use crate::kill::{Fault, Plan, Run};
use crate::workspace;
use tapetum_bench::random::Random;
use tapetum_bench::server::Server;

/// Cuts after which a drive that forgets syncs must have been found out.
const CYCLES_FORGETFUL: u64 = 10;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let plan = Plan::parse(arguments)?;
    workspace::keeping("power-cut", |scratch| strike_both(scratch, &plan))
}

fn strike_both(scratch: &Path, plan: &Plan) -> Result<(), Failure> {
    let run = power_cuts(&scratch.join("honest"), plan, plan.cycles, false)?;
    let (cut, asked) = (run.fault().cut, run.fault().mount.asked());
    println!(
        "test-power-cut: {}; {} unsynced sectors lost, {} kept; {} syncs, {} synced writes",
        run.summary(),
        cut.sectors_lost,
        cut.sectors_kept,
        asked.syncs,
        asked.synced_writes,
    );
    if cut.sectors_lost < 10 * plan.cycles {
        return Err("too few unsynced sectors were lost for this to show anything".into());
    }
    drop(run);
    match power_cuts(&scratch.join("forgetful"), plan, CYCLES_FORGETFUL, true) {
        Err(seen) => println!("test-power-cut: without syncs the same fails, as it must: {}", first_line(&seen)),
        Ok(_) => return Err("a drive that forgets syncs was not found out: the test sees nothing".into()),
    }
    Ok(())
}

fn first_line(failure: &Failure) -> String {
    failure.to_string().lines().next().unwrap_or_default().to_owned()
}

fn power_cuts(scratch: &Path, plan: &Plan, cycles: u64, forgets_syncs: bool) -> Result<Run<PowerCut>, Failure> {
    let data = scratch.join("data");
    let mount = Mount::new(&data, &scratch.join("durable"), forgets_syncs)?;
    let mut run = Run::new(plan, &data, PowerCut { mount, cut: Cut::default() })?;
    run.cycles(cycles)?;
    Ok(run)
}

/// The power fails, and the server with it.
struct PowerCut {
    mount: Mount,
    cut: Cut,
}

impl Fault for PowerCut {
    fn strike(&mut self, server: Server, random: &mut Random) -> Result<(), Failure> {
        let cut = self.mount.cut(random)?;
        self.cut.sectors_lost += cut.sectors_lost;
        self.cut.sectors_kept += cut.sectors_kept;
        // What waits for the drive dies only when it is let go.
        let killed = server.kill_and_then(|| self.mount.release());
        self.mount.restore();
        killed
    }
}
