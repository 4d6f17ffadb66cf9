//! What the process itself costs, under the names that every Go and Rust exporter uses.

use procfs::{CurrentSI, WithCurrentSystemInfo, process::Process};

use super::Registry;

/// Registers the `process_*` metrics. Where there is no `/proc` they stay at 0.
pub fn observe_process(registry: &Registry) {
    let cpu = registry.running_total("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.");
    let open_files = registry.gauge("process_open_fds", "Number of open file descriptors.");
    let resident = registry.gauge("process_resident_memory_bytes", "Resident memory size in bytes.");
    let virtual_size = registry.gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.");
    let threads = registry.gauge("process_threads", "Number of OS threads in the process.");
    registry
        .gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.")
        .set(started_at().unwrap_or_default());

    registry.before_scrape(move || {
        let Ok(process) = Process::myself() else { return };
        if let Ok(stat) = process.stat() {
            cpu.set((stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64);
            resident.set(stat.rss_bytes().get() as f64);
            virtual_size.set(stat.vsize as f64);
            threads.set(stat.num_threads as f64);
        }
        if let Ok(count) = process.fd_count() {
            open_files.set(count as f64);
        }
    });
}

fn started_at() -> Option<f64> {
    let started = Process::myself().and_then(|process| process.stat()).ok()?.starttime;
    let booted = procfs::KernelStats::current().ok()?.btime;
    Some(booted as f64 + started as f64 / procfs::ticks_per_second() as f64)
}
