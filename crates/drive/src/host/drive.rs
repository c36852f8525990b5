//! A drive as the host sees it.

use super::QueuePair;
use super::across::DriveAcross;
use super::attached::{AttachedFlash, AttachedMemory};
use super::far::FarController;
use super::queue_pair::PairController;
use super::remote::RemoteController;
use crate::device::engine::{EngineCounters, EngineOptions};
use crate::device::far_host::FarShape;
use crate::device::program::Program;
use crate::device::threads::DriveThreads;
use crate::device::turns::Turns;
use crate::device::{Controller, Device};
use crate::env::Env;
use crate::flash::{Flash, FlashQueue};
use crate::memory::{HostArena, HostRegion, LocalMemory, PairMemory};
use crate::process::OfProcess;
use std::io;
use std::sync::Arc;

/// A computational storage drive: flash, local memory, programs. Clones share it. It belongs to the process that made it: in a forked child
/// it gives no queue pairs, and dropping it does nothing.
#[derive(Clone)]
pub struct Drive {
    // Before the device, whose flash has the connection: the drive is told that its memory is not used any more.
    pub(super) elsewhere: Option<OfProcess<Arc<Elsewhere>>>,
    /// The device; if that is in another process, the host's view of its flash and local memory.
    pub(super) device: OfProcess<Arc<Device>>,
}

/// Where the drive's half is, if not in this process.
pub(super) enum Elsewhere {
    Process(AttachedMemory),
    /// Here, as if it was elsewhere.
    Across(DriveAcross),
}

impl Drive {
    /// A program's id is its index in `programs`.
    pub fn new(flash: Arc<dyn Flash>, local: LocalMemory, programs: Vec<Box<dyn Program>>, env: Env) -> Drive {
        Drive::of(Device::new(flash, local, programs.into(), env))
    }

    /// A drive over `flash` with `local_bytes` of local memory: in this process, or where the flash is.
    ///
    /// # Errors
    /// The operating system's, when it refuses the memory, and what a drive in another process says.
    pub fn over(
        flash: Arc<dyn Flash>,
        local_bytes: usize,
        programs: Vec<Box<dyn Program>>,
        env: Env,
    ) -> io::Result<Drive> {
        let Some(attached) = flash.elsewhere().and_then(|flash| flash.downcast_ref::<AttachedFlash>()) else {
            return Ok(Drive::new(flash, LocalMemory::new(local_bytes)?, programs, env));
        };
        let (memory, local) = AttachedMemory::new(attached.attachment()?, local_bytes)?;
        let elsewhere = Some(OfProcess::new(Arc::new(Elsewhere::Process(memory))));
        Ok(Drive { elsewhere, ..Drive::of(Device::new(flash, local, programs.into(), env)) })
    }

    /// A drive as [`Drive::new`] makes it, with the boundary of processes between the halves of its queue pairs, but on one thread: for the
    /// simulator. It has `own_bytes` of local memory beside the host's.
    ///
    /// # Errors
    /// The operating system's, when it refuses the memory.
    pub fn across(
        flash: Arc<dyn Flash>,
        (local_bytes, own_bytes): (usize, usize),
        programs: Vec<Box<dyn Program>>,
        env: Env,
    ) -> io::Result<Drive> {
        let (across, local) = DriveAcross::new(flash.clone(), (local_bytes, own_bytes), programs, env.clone())?;
        let elsewhere = Some(OfProcess::new(Arc::new(Elsewhere::Across(across))));
        Ok(Drive { elsewhere, ..Drive::of(Device::new(flash, local, Arc::default(), env)) })
    }

    fn of(device: Device) -> Drive {
        Drive { elsewhere: None, device: OfProcess::new(Arc::new(device)) }
    }

    /// Whether it is in another process, which has threads, units and weights of its own.
    pub fn is_elsewhere(&self) -> bool {
        self.elsewhere.is_some()
    }

    /// A region of `N` arenas with `bytes_each` that this drive can read.
    ///
    /// # Errors
    /// The operating system's, when it refuses the memory.
    pub fn host_arenas<const N: usize>(&self, bytes_each: usize) -> io::Result<[HostArena; N]> {
        match self.elsewhere {
            Some(_) => HostRegion::of_shared_arenas(bytes_each),
            None => HostRegion::of_arenas(bytes_each),
        }
    }

    fn device_over(&self, flash: Arc<dyn Flash>) -> Device {
        let Device { local, programs, env, .. } = &**self.device;
        let mut device = Device::new(flash, local.clone(), programs.clone(), env.clone());
        (device.threads, device.units) = (self.device.threads.clone(), self.device.units.clone());
        (device.engine, device.turns) = (self.device.engine.clone(), self.device.turns.clone());
        device.stages =
            Arc::new(EngineCounters::new(&device.programs, device.units.as_ref().unwrap_or(&device.engine)));
        device
    }

    /// Another drive over `flash` with the local memory, programs, threads and clock of this one. If this one has compute units, the other
    /// gets its own. Its counters begin at zero.
    pub fn with_flash(&self, flash: Arc<dyn Flash>) -> Drive {
        Drive::of(self.device_over(flash))
    }

    /// The same flash, local memory, programs and clock, with `threads` of the drive's own, 1 to
    /// [`DRIVE_THREADS_MAX`](crate::DRIVE_THREADS_MAX), that run the device half of its queue pairs. Its counters begin at zero.
    ///
    /// # Errors
    /// The operating system's, when it has no more threads or descriptors to give.
    pub fn with_threads(&self, threads: usize) -> io::Result<Drive> {
        let mut device = self.device_over(self.device.flash.clone());
        device.threads = Some(Arc::new(DriveThreads::start(threads, 0, &device.env)?));
        Ok(Drive::of(device))
    }

    /// The same drive with compute units: one engine runs the pipelines of all its queue pairs on its own threads, and divides those by the
    /// weights of applications. The first queue pair starts it. Its counters begin at zero.
    ///
    /// # Panics
    /// If a program that is to have units is not one of the drive's, or is named twice, or an application has no weight.
    pub fn with_compute_units(&self, options: &EngineOptions) -> Drive {
        let mut device = self.device_over(self.device.flash.clone());
        for (place, count) in options.units.iter().enumerate() {
            assert!(usize::from(count.program.0) < device.programs.len(), "units for {:?}", count.program);
            let is_first = options.units[..place].iter().all(|other| other.program != count.program);
            assert!(is_first && count.units > 0, "{count:?}");
        }
        device.stages = Arc::new(EngineCounters::new(&device.programs, options));
        device.units = Some(options.clone());
        Drive::of(device)
    }

    /// The same flash, local memory, programs and clock, without compute units: of the threads that compute for themselves, `at_once` do so at
    /// the same time, by the weights of their applications. Its counters begin at zero.
    pub fn with_turns(&self, at_once: usize, weights: &[u32], names: &[String]) -> Drive {
        let mut device = self.device_over(self.device.flash.clone());
        let (weights, application_names) = (weights.to_vec(), names.to_vec());
        device.engine = EngineOptions { weights, application_names, ..device.engine };
        device.stages = Arc::new(EngineCounters::new(&device.programs, &device.engine));
        device.turns = Some(Arc::new(Turns::new(&device.engine, at_once)));
        Drive::of(device)
    }

    /// Opens a queue pair that runs about `depth` flash commands at once. More may be submitted; they wait inside the queue pair.
    ///
    /// # Errors
    /// The operating system's, when it has no more rings, threads or descriptors to give; and, of the first queue pair of a drive with
    /// compute units, when local memory has no room for their sub-buffers.
    pub fn queue_pair(&self, depth: u32) -> io::Result<QueuePair> {
        self.pair_over(self.device.local.clone().into(), depth)
    }

    /// Like [`Drive::queue_pair`], for a host that has a region: a `Write` of this pair may take its bytes from there.
    ///
    /// # Errors
    /// As [`Drive::queue_pair`].
    pub fn queue_pair_with_host(&self, host: &HostRegion, depth: u32) -> io::Result<QueuePair> {
        self.pair_over(PairMemory { local: self.device.local.clone(), host: Some(host.clone()) }, depth)
    }

    /// Like [`Drive::queue_pair`], for pipelines that read much: if the drive has no compute units and local memory has room, they take
    /// `part_bytes` at a time.
    ///
    /// # Errors
    /// As [`Drive::queue_pair`].
    pub fn queue_pair_of_parts(&self, depth: u32, part_bytes: u32) -> io::Result<QueuePair> {
        if let Some(elsewhere) = &self.elsewhere {
            return self
                .far_pair(elsewhere, None, FarShape { depth, part_bytes, parts_needed: false })?
                .ok_or_else(no_room);
        }
        let memory: PairMemory = self.device.local.clone().into();
        let mut controller = self.controller(self.queue_over(&memory, depth)?, &memory)?;
        controller.take_parts_of(part_bytes);
        self.pair(controller, memory)
    }

    /// Like [`Drive::queue_pair_of_parts`], but takes the local memory of its pipelines at once. `None` if there is no room for it.
    ///
    /// # Errors
    /// As [`Drive::queue_pair`].
    pub fn queue_pair_with_parts(&self, depth: u32, part_bytes: u32) -> io::Result<Option<QueuePair>> {
        if let Some(elsewhere) = &self.elsewhere {
            return self.far_pair(elsewhere, None, FarShape { depth, part_bytes, parts_needed: true });
        }
        let memory: PairMemory = self.device.local.clone().into();
        let mut controller = self.controller(self.queue_over(&memory, depth)?, &memory)?;
        controller.take_parts_of(part_bytes);
        if controller.make_engine() { self.pair(controller, memory).map(Some) } else { Ok(None) }
    }

    fn pair_over(&self, memory: PairMemory, depth: u32) -> io::Result<QueuePair> {
        if let Some(elsewhere) = &self.elsewhere {
            let shape = FarShape { depth, part_bytes: 0, parts_needed: false };
            return self.far_pair(elsewhere, memory.host, shape)?.ok_or_else(no_room);
        }
        let controller = self.controller(self.queue_over(&memory, depth)?, &memory)?;
        self.pair(controller, memory)
    }

    fn queue_over(&self, memory: &PairMemory, depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        self.refuse_forked()?;
        match self.device.threads {
            // One of the drive's threads polls it.
            Some(_) => self.device.flash.open_queue_of_one_thread(memory, depth.max(1)),
            None => self.device.flash.open_queue(memory, depth.max(1)),
        }
    }

    /// Like [`Drive::queue_pair`], for one thread alone: the first that polls it or waits on it must do so from then on, and drop it.
    /// Completions are cheaper that way. On a drive with its own threads, any thread may use it.
    ///
    /// # Errors
    /// As [`Drive::queue_pair`].
    pub fn queue_pair_of_one_thread(&self, depth: u32) -> io::Result<QueuePair> {
        if self.is_elsewhere() {
            return self.queue_pair(depth);
        }
        self.refuse_forked()?;
        let memory = self.device.local.clone().into();
        let queue = self.device.flash.open_queue_of_one_thread(&memory, depth.max(1))?;
        self.pair(self.controller(queue, &memory)?, memory)
    }

    fn refuse_forked(&self) -> io::Result<()> {
        match self.device.is_here() {
            true => Ok(()),
            false => Err(io::Error::other("the drive was opened before this process was forked: open it anew")),
        }
    }

    /// `None`: the drive has no room for the parts.
    fn far_pair(
        &self,
        elsewhere: &Elsewhere,
        host: Option<HostRegion>,
        shape: FarShape,
    ) -> io::Result<Option<QueuePair>> {
        self.refuse_forked()?;
        let memory = PairMemory { local: self.device.local.clone(), host };
        let region = match memory.host.as_ref().map(HostRegion::file) {
            Some(None) => return Err(io::Error::other("the region of this host is its own: make it by its drive")),
            region => region.flatten(),
        };
        let counters = self.device.counters.free();
        let far = match elsewhere {
            Elsewhere::Process(memory) => FarController::open(memory, region, shape, counters.clone())?,
            Elsewhere::Across(across) => across.open(region, shape, counters.clone())?,
        };
        let Some(far) = far else { return Ok(None) };
        let controller = PairController::InOtherProcess(far);
        Ok(Some(QueuePair::new(controller, self.clone(), memory, counters)))
    }

    fn controller(&self, queue: Box<dyn FlashQueue>, memory: &PairMemory) -> io::Result<Controller> {
        Controller::new((*self.device).clone(), queue, memory.host.clone(), self.device.counters.free())
    }

    fn pair(&self, controller: Controller, memory: PairMemory) -> io::Result<QueuePair> {
        let counters = controller.counters().clone();
        let controller = match &self.device.threads {
            None => PairController::Here(controller),
            Some(threads) => PairController::OnDriveThread(RemoteController::new(controller, threads.clone())?),
        };
        Ok(QueuePair::new(controller, self.clone(), memory, counters))
    }

    /// Local memory, as far as the host hands it out.
    pub fn local(&self) -> &LocalMemory {
        &self.device.local
    }

    /// The flash below, for code in this process that made it and puts another drive over it or opens it again. To learn about the flash,
    /// ask the drive ([`super::questions`]).
    pub fn flash(&self) -> &Arc<dyn Flash> {
        &self.device.flash
    }

    pub fn env(&self) -> &Env {
        &self.device.env
    }
}

fn no_room() -> io::Error {
    io::Error::other("the drive has no local memory for the queue pair")
}
