package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// enter runs a program in the namespaces of a keeper, and ends with it:
//
//	controlplane enter KEEPER CGROUP PIDFILE PROGRAM [ARGUMENT ...]
//
// The process that enters a pid namespace is always a child of the one that asks, so this one stays outside as its parent, passes
// SIGTERM and SIGINT on, and takes it along when it dies in whichever way. Both are in CGROUP, and so is all that the program starts.
// PIDFILE gets the program's process id. CGROUP and PIDFILE may be empty.
func enter() {
	if len(os.Args) < 5 {
		fmt.Fprintln(os.Stderr, "usage: controlplane enter KEEPER CGROUP PIDFILE PROGRAM [ARGUMENT ...]")
		os.Exit(2)
	}
	pid, cgroup, pidFile, arguments := os.Args[1], os.Args[2], os.Args[3], os.Args[4:]
	if cgroup != "" {
		if err := joinCgroup(cgroup); err != nil {
			exitWith("enter", fmt.Errorf("cannot join a control group: %w", err))
		}
	}
	// Namespaces belong to threads, children inherit those of the thread that makes them, and die with it.
	runtime.LockOSThread()
	if err := joinNamespaces(pid, "net", "pid", "mnt"); err != nil {
		exitWith("enter", fmt.Errorf("cannot enter the namespaces of process %s: %w", pid, err))
	}
	// setpriv and not SysProcAttr.Pdeathsig, with which Go takes a child whose parent is in another pid namespace for an orphan.
	program := exec.Command("setpriv", append([]string{"--pdeathsig", "KILL", "--"}, arguments...)...)
	program.Stdout, program.Stderr = os.Stdout, os.Stderr
	program.Env = withoutLifeline(os.Environ())
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	if err := program.Start(); err != nil {
		exitWith("enter", err)
	}
	if pidFile != "" {
		if err := os.WriteFile(pidFile, []byte(strconv.Itoa(program.Process.Pid)), 0o600); err != nil {
			_ = program.Process.Kill()
			exitWith("enter", err)
		}
	}
	go func() {
		for received := range signals {
			_ = program.Process.Signal(received)
		}
	}()
	ended := make(chan error)
	go func() { ended <- program.Wait() }()
	if os.Getenv(lifelineVariable) == "" {
		exitLike(<-ended)
	}
	parentEnded := make(chan struct{})
	go func() {
		awaitEndOfParent()
		close(parentEnded)
	}()
	select {
	case outcome := <-ended:
		exitLike(outcome)
	case <-parentEnded:
		_ = program.Process.Kill()
		// A dead process that nobody waits for would keep its namespace alive.
		<-ended
		leaveNothing()
		os.Exit(1)
	}
}

// joinNamespaces moves this thread into a process's namespaces of these kinds.
func joinNamespaces(pid string, kinds ...string) error {
	// A thread that shares its working directory with others can't change its mounts.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	var files []*os.File
	for _, kind := range kinds {
		file, err := os.Open("/proc/" + pid + "/ns/" + kind)
		if err != nil {
			return err
		}
		files = append(files, file)
	}
	for _, file := range files {
		if err := unix.Setns(int(file.Fd()), 0); err != nil {
			return err
		}
		_ = file.Close()
	}
	return nil
}

func withoutLifeline(environment []string) []string {
	var kept []string
	for _, variable := range environment {
		if !strings.HasPrefix(variable, lifelineVariable) {
			kept = append(kept, variable)
		}
	}
	return kept
}
