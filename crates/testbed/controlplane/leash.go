package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
)

// leash runs a program that knows nothing of lifelines, such as the operator under test: it passes SIGTERM and SIGINT on,
// ends with the program's own exit code, and kills it as soon as its own standard input is closed.
//
//	controlplane leash PIDFILE PROGRAM [ARGUMENT ...]
//
// The program's process id is written to PIDFILE, for tests that want to hit it harder.
func leash() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: controlplane leash PIDFILE PROGRAM [ARGUMENT ...]")
		os.Exit(2)
	}
	program := exec.Command(os.Args[2], os.Args[3:]...)
	program.Stdout, program.Stderr = os.Stdout, os.Stderr
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	if err := program.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "leash:", err)
		os.Exit(1)
	}
	if err := os.WriteFile(os.Args[1], []byte(strconv.Itoa(program.Process.Pid)), 0o600); err != nil {
		_ = program.Process.Kill()
		fmt.Fprintln(os.Stderr, "leash:", err)
		os.Exit(1)
	}
	go func() {
		for received := range signals {
			_ = program.Process.Signal(received)
		}
	}()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = program.Process.Kill()
	}()

	exitLike(program.Wait())
}

// exitLike ends this process the way that the program which it stands for has ended.
func exitLike(err error) {
	var ended *exec.ExitError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &ended) && ended.ExitCode() >= 0:
		os.Exit(ended.ExitCode())
	default:
		// Killed by a signal; told as a shell would tell it.
		os.Exit(128 + int(syscall.SIGKILL))
	}
}
