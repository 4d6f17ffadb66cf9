package main

func workqueueReference() {}
