//! Does what a request asks, with an open store. The same code for a command's own store and for a server's.
//!
//! Threads: the caller's. Work that takes long asks now and then whether anybody waits for it.

mod atomic;
mod backups;
mod check;
mod costs;
mod freezes;
mod items;
mod keyspaces;
#[cfg(feature = "images")]
mod pictures;
mod queries;
mod read_keyspace;
mod storing;

use tapetum::{Application, KeyspaceHandle, Place, Store};

use crate::caller::Caller;
use crate::escapes::word;
use crate::failure::Failure;
use crate::inspect_lines;
use crate::pipelines::{self, ItemRun, PipelineRun};
use crate::reply::Reply;
use crate::request::Request;
use crate::serving_store::ServingStore;
use read_keyspace::KeyspaceToRead;

/// Bytes of an output that are told at once.
const PART_BYTES: usize = 4 << 20;

/// An open store, and what messages say about it.
#[derive(Clone, Copy)]
pub struct OpenStore<'a> {
    pub store: &'a Store,
    pub place: &'a Place,
    /// Programs of the drive that have threads of their own, and how many.
    pub compute_units: &'a [(String, u16)],
    /// The server that has it open, if it is one.
    pub server: Option<&'a dyn ServingStore>,
}

impl OpenStore<'_> {
    fn failure(&self, error: tapetum::Error) -> Failure {
        Failure::of_store(self.store, self.place, error)
    }

    fn keyspace(&self, name: &str) -> Result<KeyspaceHandle, Failure> {
        self.store.keyspace(name).map_err(|error| self.failure(error))
    }

    /// A keyspace, for work at the drive that is an application's.
    fn keyspace_for(&self, name: &str, application: Option<&str>) -> Result<KeyspaceHandle, Failure> {
        let keyspace = self.keyspace(name)?;
        Ok(match application {
            Some(name) => keyspace.of_application(self.application(name)?),
            None => keyspace,
        })
    }

    fn application(&self, application: &str) -> Result<Application, Failure> {
        let known = self.store.applications();
        if !known.iter().any(|known| known.name == application) {
            let names: Vec<&str> = known.iter().map(|application| &application.name[..]).collect();
            return Err(Failure::bad(format!(
                "there is no application {application:?}: `tapetum serve --compute-units … --weight {application}=N` has it; now there are: {}",
                names.join(", ")
            )));
        }
        self.store.application(application).map_err(|error| self.failure(error))
    }

    fn units_of(&self, program: &str) -> Option<u16> {
        self.compute_units.iter().find(|(name, _)| name == program).map(|(_, units)| *units)
    }
}

/// Does what is asked, to its end.
///
/// # Errors
/// What was told to the caller before holds. [`crate::failure::FailureKind::Cancelled`], if the caller has left.
pub fn execute(open: OpenStore<'_>, request: Request, caller: &mut dyn Caller) -> Result<(), Failure> {
    match request {
        Request::Keyspaces { name, freeze } => keyspaces::list(open, name.as_deref(), freeze, caller),
        Request::Format { keyspace, freeze } => keyspaces::format(open, &keyspace, freeze, caller),
        Request::CreateKeyspace(wanted) => keyspaces::create(open, &wanted),
        Request::DropKeyspace { name } => open.store.drop_keyspace(&name).map_err(|error| open.failure(error)),
        Request::RenameKeyspace { from, to } => {
            open.store.rename_keyspace(&from, &to).map_err(|error| open.failure(error))
        }
        Request::SetFormat { keyspace, fields } => keyspaces::set_format(open, &keyspace, fields.as_deref()),
        Request::CheckFormat { keyspace, fields } => keyspaces::check_format(open, &keyspace, &fields, caller),
        Request::GrowBlockDevice { name, size_bytes } => keyspaces::grow(open, &name, size_bytes),
        Request::Get { keyspace, key } => items::get(open, &keyspace, key, caller),
        Request::GetStamped { keyspace, key } => atomic::get(open, &keyspace, key, caller),
        Request::CompareAndSet { keyspace, item, stamp } => {
            atomic::compare_and_set(open, &items::writable(open, &keyspace)?, &item, stamp, caller)
        }
        Request::Increment(asked) => atomic::increment(open, &items::writable(open, &asked.keyspace)?, &asked, caller),
        Request::Put { keyspace, key, value } => items::put(open, &keyspace, &key, &value),
        Request::Store { keyspace, items, keeps_existing } => {
            let keyspace = items::writable(open, &keyspace)?;
            storing::store(open, &keyspace, &items, keeps_existing, caller)
        }
        Request::Delete { keyspace, key } => items::delete(open, &keyspace, &key, caller),
        Request::DeleteMany { keyspace, keys } => {
            storing::delete(open, &items::writable(open, &keyspace)?, &keys, caller)
        }
        Request::Scan { keyspace, freeze, range, limit, wanted } => {
            let keyspace = KeyspaceToRead::find(open, &keyspace, freeze)?;
            items::scan(&keyspace, items::Scanning { range: range.into(), limit, wanted }, caller)
        }
        Request::List { keyspace, freeze, prefix, wanted } => {
            items::list(&KeyspaceToRead::find(open, &keyspace, freeze)?, &prefix, wanted, caller)
        }
        Request::Query(asked) => queries::query(open, asked, caller),
        Request::GetFields(asked) => queries::get_fields(open, &asked, caller),
        Request::Betweenness(asked) => queries::betweenness(open, &asked, caller),
        Request::RunPipeline { keyspace, key, pipeline, application } => {
            let keyspace = open.keyspace_for(&keyspace, application.as_deref())?;
            run_pipeline(open, &keyspace, &key, &pipeline, caller)
        }
        #[cfg(feature = "images")]
        Request::RunPictures(asked) => pictures::run(open, &asked, caller),
        #[cfg(not(feature = "images"))]
        Request::RunPictures(_) => Err(Failure::bad(
            "this tapetum was built without pictures: build the one that serves the store with --features images",
        )),
        Request::Freeze(asked) => freezes::freeze(open, asked, caller),
        Request::Freezes => freezes::list(open, caller),
        Request::RenewFreeze { id, lasts_ms } => freezes::renew(open, id, lasts_ms, caller),
        Request::ReleaseFreeze { id } => freezes::release(open, id),
        Request::Backup { to, anew } => backups::create(open, &to, anew, caller),
        // A server does it before it takes the store.
        Request::Promote { .. } => Err(Failure::bad("only a store that nobody else has open is promoted so")),
        Request::Figures => figures(open, caller),
        Request::Check => check::run(open, caller),
        Request::Inspect => {
            let inspection = tapetum::inspect(open.store).map_err(|error| open.failure(error))?;
            Ok(caller.take(Reply::Figures(inspect_lines::to_lines(&inspection)))?)
        }
        Request::Locate { keyspace, key } => {
            let keyspace = open.keyspace(&keyspace)?.keyspace();
            let location = tapetum::locate(open.store, keyspace, &key).map_err(|error| open.failure(error))?;
            Ok(caller.take(Reply::Figures(inspect_lines::location_lines(&location)))?)
        }
        Request::Grow { capacity_bytes } => {
            open.store.resize_capacity(capacity_bytes).map_err(|error| open.failure(error))
        }
        Request::ResizeMemory { memory_bytes } => match open.server {
            Some(server) => server.resize_memory(open.store, memory_bytes).map_err(|error| open.failure(error)),
            None => Err(Failure::bad("memory is a running server's: give --memory to `tapetum serve`")),
        },
    }
}

fn run_pipeline(
    open: OpenStore<'_>,
    keyspace: &KeyspaceHandle,
    key: &[u8],
    text: &str,
    caller: &mut dyn Caller,
) -> Result<(), Failure> {
    let ran = pipelines::run_item(keyspace, key, text).map_err(|error| match error.downcast::<tapetum::Error>() {
        Ok(error) => open.failure(*error),
        Err(other) => Failure::bad(other.to_string()),
    })?;
    let PipelineRun { bytes, stages } = match ran {
        ItemRun::Ran(ran) => ran,
        ItemRun::NoItem => return Ok(()),
        ItemRun::TooLong => return Ok(caller.take(Reply::TooLong)?),
    };
    caller.take(Reply::Stages(stages))?;
    // As much as a frame may have.
    for part in bytes.chunks(PART_BYTES) {
        caller.take(Reply::Bytes(part.to_vec()))?;
    }
    Ok(())
}

fn figures(open: OpenStore<'_>, caller: &mut dyn Caller) -> Result<(), Failure> {
    let of_store =
        open.store.stats().figures().into_iter().map(|figure| (figure.name.to_owned(), figure.value.to_string()));
    let mut figures: Vec<(String, String)> = of_store.collect();
    let items = open.store.count_items().map_err(|error| open.failure(error))?;
    figures.extend(
        items
            .into_iter()
            .map(|(keyspace, items)| (format!("keyspace_items:{}", word(&keyspace.name)), items.to_string())),
    );
    for stage in open.store.stage_counters().into_iter().filter(|stage| stage.tasks > 0) {
        let figure = |what: &str, value: u64| (format!("stage_{what}:{}", word(&stage.name)), value.to_string());
        figures.extend([
            figure("tasks", stage.tasks),
            figure("bytes_in", stage.bytes_in),
            figure("bytes_out", stage.bytes_out),
            figure("unit_us", stage.unit_us),
        ]);
    }
    for application in open.store.applications() {
        let figure =
            |what: &str, value: u64| (format!("application_{what}:{}", word(&application.name)), value.to_string());
        figures.extend([
            figure("weight", application.weight.into()),
            figure("pipelines", application.pipelines),
            figure("unit_us", application.unit_us),
        ]);
    }
    Ok(caller.take(Reply::Figures(figures))?)
}
