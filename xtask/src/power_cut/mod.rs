//! Power cuts: the server runs on our own file system, which keeps unsynced bytes and names in memory. A power cut under load drops or
//! reorders those; the server is killed and restarted on what survived, and every acknowledged write must be there. Clients, values and
//! model are those of the kill test. The server makes the folders of its data itself.
//!
//! The file system is also full for a while (see [`full`]).
//!
//! The test is tested as well: on a file system that ignores syncs of files, or of folders, it must fail.

mod full;
mod mount;
mod names;
mod state;
mod volatile;

use std::path::Path;

use self::mount::Mount;
use self::state::Forgets;
use self::volatile::Cut;
use crate::arguments::Arguments;
use crate::kill::{Fault, Plan, Run};
use crate::nbd::file_system::EXT4;
use crate::nbd::fuse_disk::FuseDisk;
use crate::nbd::{Disk, pattern};
use crate::{Failure, workspace};
use tapetum_bench::random::Random;
use tapetum_bench::server::Server;

/// The most cuts until a drive that ignores syncs must be detected.
const CYCLES_FORGETFUL: u64 = 10;
/// New stores whose first life ends with a cut. Only there can names be lost, and most cuts lose some that were not synced.
const NEW_STORES: u64 = 5;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let plan = Plan::parse(arguments)?;
    workspace::keeping("power-cut", |scratch| strike_each(scratch, &plan))
}

fn strike_each(scratch: &Path, plan: &Plan) -> Result<(), Failure> {
    let run = power_cuts(&scratch.join("honest"), plan, plan.cycles, Forgets::Nothing, Keyspaces::Both)?;
    let (cut, asked) = (run.fault().cut, run.fault().mount.asked());
    println!(
        "test-power-cut: {}; {} unsynced sectors lost, {} kept; {} syncs, {} synced writes, {} syncs of folders",
        run.summary(),
        cut.sectors_lost,
        cut.sectors_kept,
        asked.syncs,
        asked.synced_writes,
        asked.folder_syncs,
    );
    if cut.sectors_lost < 10 * plan.cycles {
        return Err("too few unsynced sectors were lost for this to show anything".into());
    }
    drop(run);
    new_stores(&scratch.join("new"), plan, Forgets::Nothing)?;
    println!("test-power-cut: {NEW_STORES} new stores kept what they acknowledged before their first cut");
    full::run(&scratch.join("full"), plan)?;
    under_device(&scratch.join("device"), plan)?;
    let forgetful = |forgets| scratch.join(format!("forgets-{forgets:?}"));
    let of_files =
        power_cuts(&forgetful(Forgets::Bytes), plan, CYCLES_FORGETFUL, Forgets::Bytes, Keyspaces::Both).map(drop);
    is_found_out("syncs of files", of_files)?;
    let of_folders = new_stores(&forgetful(Forgets::Names), plan, Forgets::Names);
    is_found_out("syncs of folders", of_folders)?;
    Ok(())
}

/// One cut in so many is under writers of a block device, with single blocks and with groups.
const DEVICE_SHARE: u64 = 10;

/// Cuts the power under writers of block devices: with `always`, and with less, with blocks in groups, where only flushes and forced writes
/// promise durability.
fn under_device(scratch: &Path, plan: &Plan) -> Result<(), Failure> {
    for (sync, group_blocks) in [("always", 1), ("no", 8)] {
        let scratch = scratch.join(sync);
        let mount = Mount::new(&scratch.join("mounted"), &scratch.join("durable"), Forgets::Nothing)?;
        let disk = Disk::make(&plan.binary, &scratch.join("mounted/data"), sync, group_blocks)?;
        let mut fault = PowerCut { mount, cut: Cut::default() };
        let cycles = plan.cycles.div_ceil(DEVICE_SHARE);
        let durable = pattern::run(&disk, cycles, plan.seed, &mut fault)?;
        let lost = fault.cut.sectors_lost;
        println!(
            "test-power-cut: {cycles} cuts under a block device at --sync {sync}: {durable} writes of blocks were durable, none lost; \
             {lost} unsynced sectors lost"
        );
        if let Err(why) = FuseDisk::check(&scratch) {
            println!("test-power-cut: LEFT OUT, a file system on it: {why}");
            continue;
        }
        let made = EXT4.survives(&disk, &scratch, cycles, plan.seed, &mut fault)?;
        println!("test-power-cut: {cycles} cuts under ext4 on it: {made} files were durable, none lost");
    }
    Ok(())
}

fn is_found_out(forgotten: &str, seen: Result<(), Failure>) -> Result<(), Failure> {
    let Err(seen) = seen else {
        return Err(format!("a drive that forgets {forgotten} was not found out: the test sees nothing").into());
    };
    println!("test-power-cut: without {forgotten} the same fails, as it must: {}", first_line(&seen));
    Ok(())
}

fn new_stores(scratch: &Path, plan: &Plan, forgets: Forgets) -> Result<(), Failure> {
    for number in 0..NEW_STORES {
        let plan = Plan { seed: plan.seed + number, binary: plan.binary.clone(), ..*plan };
        // The server makes the store itself.
        power_cuts(&scratch.join(number.to_string()), &plan, 1, forgets, Keyspaces::Default)?;
    }
    Ok(())
}

fn first_line(failure: &Failure) -> String {
    failure.to_string().lines().next().unwrap_or_default().to_owned()
}

/// The keyspaces of a store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keyspaces {
    Default,
    /// The default one and an ordered one.
    Both,
}

fn power_cuts(
    scratch: &Path,
    plan: &Plan,
    cycles: u64,
    forgets: Forgets,
    keyspaces: Keyspaces,
) -> Result<Run<PowerCut>, Failure> {
    let mounted = scratch.join("mounted");
    let mount = Mount::new(&mounted, &scratch.join("durable"), forgets)?;
    let run = Run::new(plan, &mounted.join("new/data"), PowerCut { mount, cut: Cut::default() })?;
    let run = if keyspaces == Keyspaces::Both { run.with_ordered()? } else { run };
    let mut run = run.logging_to(&scratch.join("server.log"));
    run.cycles(cycles)?;
    Ok(run)
}

/// The power fails, and the server dies with it.
struct PowerCut {
    mount: Mount,
    cut: Cut,
}

impl Fault for PowerCut {
    fn strike(&mut self, server: Server, random: &mut Random) -> Result<(), Failure> {
        let cut = self.mount.cut(random)?;
        self.cut.sectors_lost += cut.sectors_lost;
        self.cut.sectors_kept += cut.sectors_kept;
        self.cut.names_lost += cut.names_lost;
        // A thread that waits for the drive ends only when its request is answered.
        let killed = server.kill_and_then(|| self.mount.release());
        self.mount.restore();
        killed
    }
}
