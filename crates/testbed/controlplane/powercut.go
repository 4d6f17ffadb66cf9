package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// powercut does to one of the nodes in a keeper's namespaces what a power failure does to a machine:
//
//	controlplane powercut KEEPER CGROUP MEMORY DISK
//
// All processes in CGROUP die, nothing stays mounted below the directories MEMORY and DISK, and MEMORY is empty. With the mounts
// go the pods' network namespaces, so that their addresses answer as little as those of a machine without power.
func powercut() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: controlplane powercut KEEPER CGROUP MEMORY DISK")
		os.Exit(2)
	}
	exitWith("powercut", cutPower(os.Args[1], os.Args[2], os.Args[3], os.Args[4]))
}

func cutPower(keeper, cgroup, memory, disk string) error {
	if err := killCgroup(cgroup); err != nil {
		return err
	}
	// Read from here: in the keeper's mounts /proc shows its pid namespace, which this process is not in.
	mounts, err := os.ReadFile("/proc/" + keeper + "/mountinfo")
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	if err := joinNamespaces(keeper, "mnt"); err != nil {
		return fmt.Errorf("cannot enter the mounts of process %s: %w", keeper, err)
	}
	points := mountPoints(string(mounts))
	// What was mounted last may be on top of what was mounted before.
	for i := len(points) - 1; i >= 0; i-- {
		if !isBelow(points[i], memory) && !isBelow(points[i], disk) {
			continue
		}
		if err := unix.Unmount(points[i], unix.MNT_DETACH); err != nil {
			return fmt.Errorf("cannot unmount %s: %w", points[i], err)
		}
	}
	return os.RemoveAll(memory)
}

// mountPoints are the fifth words of the lines of a mountinfo file, in which white space is written in octal.
func mountPoints(mountinfo string) []string {
	plain := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var points []string
	for _, line := range strings.Split(mountinfo, "\n") {
		if words := strings.Fields(line); len(words) > 4 {
			points = append(points, plain.Replace(words[4]))
		}
	}
	return points
}

func isBelow(path, directory string) bool {
	return path == directory || strings.HasPrefix(path, directory+"/")
}
