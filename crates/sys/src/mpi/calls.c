/* The calls of MPI's C interface that messages between elements take. */
#include <mpi.h>
#include <stdlib.h>

int terrace_mpi_start(int *rank, int *size)
{
	int done = 0;
	if (MPI_Initialized(&done) || done || MPI_Init(NULL, NULL))
		return 1;
	return MPI_Comm_rank(MPI_COMM_WORLD, rank) || MPI_Comm_size(MPI_COMM_WORLD, size);
}

/* The bytes have to stay until terrace_mpi_sent says so. */
void *terrace_mpi_send(const void *bytes, int length, int to)
{
	MPI_Request *request = malloc(sizeof *request);
	if (!request)
		MPI_Abort(MPI_COMM_WORLD, 1);
	MPI_Isend(bytes, length, MPI_BYTE, to, 0, MPI_COMM_WORLD, request);
	return request;
}

/* Whether the bytes are free again; the request is gone then. */
int terrace_mpi_sent(void *request)
{
	int done = 0;
	MPI_Test(request, &done, MPI_STATUS_IGNORE);
	if (done)
		free(request);
	return done;
}

/* Whether a message is there, whose, and of how many bytes. */
int terrace_mpi_probe(int *from, int *length)
{
	MPI_Status status;
	int there = 0;
	MPI_Iprobe(MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, &there, &status);
	if (!there)
		return 0;
	*from = status.MPI_SOURCE;
	MPI_Get_count(&status, MPI_BYTE, length);
	return 1;
}

void terrace_mpi_receive(void *bytes, int length, int from)
{
	MPI_Recv(bytes, length, MPI_BYTE, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

void terrace_mpi_stop(void)
{
	MPI_Finalize();
}

void terrace_mpi_abort(void)
{
	MPI_Abort(MPI_COMM_WORLD, 1);
}
