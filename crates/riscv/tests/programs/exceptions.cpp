// Exceptions across frames and threads, destructors, virtual calls, dynamic casts.
#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <iostream>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <typeinfo>
#include <vector>

static int alive;

struct Guard {
	Guard() { alive++; }
	~Guard() { alive--; }
};

struct Shape {
	virtual ~Shape() = default;
	virtual double area() const = 0;
};
struct Square : Shape {
	double side = 3;
	double area() const override { return side * side; }
};
struct Circle : Shape {
	double area() const override { return 3.25; }
};

static int dig(int depth)
{
	Guard guard;
	if (depth == 0)
		throw std::out_of_range("bottom");
	return dig(depth - 1) + 1;
}

int main()
{
	for (int i = 0; i < 50; i++) {
		try {
			dig(i);
		} catch (const std::logic_error &error) {
			if (i % 25 == 0)
				std::cout << error.what() << ' ' << alive << '\n';
		}
	}
	Square square;
	Circle circle;
	std::vector<Shape *> shapes{&square, &circle};
	for (Shape *shape : shapes)
		std::cout << shape->area() << ' ' << (dynamic_cast<Square *>(shape) != nullptr) << '\n';
	std::vector<std::future<long>> results;
	for (int i = 0; i < 4; i++)
		results.push_back(std::async(std::launch::async, [i] {
			if (i == 3)
				throw std::runtime_error("from a thread");
			return i * 1000000007L;
		}));
	for (auto &result : results) {
		try {
			std::cout << result.get() << '\n';
		} catch (const std::exception &error) {
			std::cout << error.what() << ' ' << typeid(error).name() << '\n';
		}
	}
	std::mutex lock;
	std::condition_variable turn;
	int next = 0;
	std::vector<std::thread> threads;
	for (int i = 0; i < 3; i++)
		threads.emplace_back([&, i] {
			std::unique_lock<std::mutex> held(lock);
			turn.wait(held, [&] { return next == i; });
			std::cout << "turn " << i << std::endl;
			next++;
			turn.notify_all();
		});
	for (auto &thread : threads)
		thread.join();
	std::atomic<unsigned> total{0};
	std::thread other([&] { for (int i = 0; i < 1000; i++) total += i; });
	for (int i = 0; i < 1000; i++)
		total += 1;
	other.join();
	std::cout << total << std::endl;
	throw 5;
}
