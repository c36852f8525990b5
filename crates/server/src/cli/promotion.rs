//! `tapetum promote`: lets a standby take the place of the server that it follows.

// Above the simulator: a command waits by the clock.
#![allow(clippy::disallowed_methods)]

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use tapetum::backup::{self, BackupError, Depot};
use tapetum_depot::Destination;
use tapetum_service::asked::Asked;
use tapetum_service::backups::LASTS_MS;
use tapetum_service::caller::Gathering;
use tapetum_service::opening;
use tapetum_service::reply::{PromotedRow, Reply};
use tapetum_service::request::Request;
use tapetum_service::{backups, duration};

use super::commands::{Outcome, offline_options, print, tell};
use super::reach::server_of;
use crate::cli::arguments::StoreArguments;
use crate::cli::backup_arguments::destination;
use crate::store::follower::{FollowError, Follower};
use crate::store::standby_claim::StandbyClaim;

/// How others see this process.
const COMMAND: &str = "tapetum promote";
/// How long a server that has the standby may take until it answers.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often it is asked.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub struct PromoteArguments {
    /// The place of the backups that the standby follows: a folder, or s3://BUCKET/PREFIX
    #[arg(value_name = "PLACE", value_parser = destination())]
    from: Destination,
    /// Also where no server holds a lease that says how much is lost; or let a store that is no standby be the one that counts
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    store: StoreArguments,
}

pub fn run(arguments: &PromoteArguments) -> Outcome {
    let promoted = match find_promoter(&arguments.store)? {
        Promoter::Server(mut server) => of_server(&mut *server, arguments.force)?,
        Promoter::Command(claim) => of_closed(arguments, claim)?,
    };
    tell(&lost(&promoted));
    let PromotedRow { generation, number, .. } = promoted;
    print(format!("generation {generation} began with backup {number}\n").as_bytes())
}

/// Who promotes the standby.
enum Promoter {
    Server(Box<dyn Asked>),
    /// This command, which has the standby for itself.
    Command(StandbyClaim),
}

/// Asks the server that has the standby open. One that has just begun answers later than it claims the standby, and is waited for.
fn find_promoter(arguments: &StoreArguments) -> Result<Promoter, Box<dyn Error>> {
    let began = Instant::now();
    loop {
        if let Some(server) = server_of(&arguments.place)? {
            return Ok(Promoter::Server(server));
        }
        match StandbyClaim::take(&arguments.place(), COMMAND) {
            Err(FollowError::Held { .. }) if began.elapsed() < PATIENCE => std::thread::sleep(LOOK),
            claim => return Ok(Promoter::Command(claim?)),
        }
    }
}

fn of_server(server: &mut dyn Asked, force: bool) -> Result<PromotedRow, Box<dyn Error>> {
    let mut told = Gathering::default();
    server.call(&Request::Promote { force }, &mut told)?;
    match told.replies.pop() {
        Some(Reply::Promoted(promoted)) => Ok(promoted),
        _ => Err("no promotion was told".into()),
    }
}

/// A store that no server has open: it is served with --backup-to afterwards.
fn of_closed(arguments: &PromoteArguments, claim: StandbyClaim) -> Result<PromotedRow, Box<dyn Error>> {
    let depot = arguments.from.open()?;
    let (place, options) = (arguments.store.place(), offline_options(&arguments.store));
    let mut follower = match Follower::new(&depot, &place, &options, claim, COMMAND) {
        Err(FollowError::NoStandby { .. }) if arguments.force => return of_other(&depot, arguments),
        Err(error @ FollowError::NoStandby { .. }) => return promoted_before(&depot, arguments)?.ok_or(error.into()),
        follower => follower?,
    };
    let (mut lease, loss) = follower.take_lease(arguments.force, LASTS_MS, &mut || true)?;
    let promoted = follower.end_following().and_then(|()| follower.promote(&mut lease, loss));
    backups::release(lease);
    let promoted = promoted?;
    opening::open(&place, &options)?.close()?;
    Ok(promoted)
}

/// Finds the promotion of a store that was promoted before, and tells of it as that did.
fn promoted_before(depot: &Arc<dyn Depot>, arguments: &PromoteArguments) -> Result<Option<PromotedRow>, BackupError> {
    let store = offline_options(&arguments.store).open_read_only(arguments.store.place());
    let history = store.ok().and_then(|store| store.history().ok());
    let start =
        backup::last_start(&**depot)?.filter(|start| history.is_some_and(|history| history.id == start.history));
    Ok(start.map(|start| PromotedRow { generation: start.generation, number: start.before.1, loss_ms: None }))
}

/// A store that is no standby becomes the one that counts.
fn of_other(depot: &Arc<dyn Depot>, arguments: &PromoteArguments) -> Result<PromotedRow, Box<dyn Error>> {
    let last = backup::find(&**depot, None)?;
    let mut lease = backups::take_lease(depot, COMMAND, LASTS_MS, &mut || true)?;
    let place = arguments.store.place();
    let store = opening::open(&place, &offline_options(&arguments.store))?;
    let is_its_own = backup::refuse_other_store(&**depot, store.id());
    let promoted = is_its_own.and_then(|()| lease.promote(store.history()?.id, &last));
    store.close()?;
    backups::release(lease);
    Ok(PromotedRow { generation: promoted?, number: last.sequence, loss_ms: None })
}

fn lost(promoted: &PromotedRow) -> String {
    match promoted.loss_ms {
        None => "what was written elsewhere since the last backup is lost; how much that is, nobody knows".into(),
        Some(0) => "nothing is lost: the server before made a last backup and stopped".into(),
        Some(loss_ms) => {
            let within = duration::shown(Duration::from_millis(loss_ms));
            format!("writes that the server before acknowledged in its last {within} may be lost")
        }
    }
}
